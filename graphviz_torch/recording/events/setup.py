"""Find mistakes in how a program sets up parameters and optimizers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence, Set
from itertools import chain
from operator import attrgetter
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from ...findings.rules.freezing import AttributeAssignment
from ...findings.rules.leaves import Holder, UnregisteredParameters
from ...findings.rules.meaning.shared_weights import RepeatedLayer
from ...findings.rules.paths import UnusedModule
from ...findings.rules.training import OptimizerNeverStepped
from ...graph import NO_PARAMETERS, Graph
from ...internals.frames import OWN, CodePosition, code_owner, local_variables, user_frames
from ...internals.hooks.optimizers import optimized_parameters
from ..backward import Backward
from ..listener import BackwardBegan, BlockRaised, Listener, Resumed
from ..live import leaves_of
from ..program import Program
from ..program.code import codes, find_assignment, find_method_call
from ..program.events import Events

# Misspellings of `requires_grad`, and Keras's name `trainable`.
_MISSPELT = re.compile(r"(?!requires_grad$)(requires?d?_?grad(ient)?s?|grad_requires?d?|trainable)")
_MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
_CONTAINERS = ("list", "dict")
_LISTS = frozenset((torch.nn.ModuleList, torch.nn.Sequential))
_MAX_HARMLESS_NAMES = 10_000
_MAX_LINES = 256  # maximum number of observed lines that call backward
_OWN_REFERENCES = 3  # number of the recording's own references: table, variable, argument


_HARMLESS: set[str] = set()  # attribute names that do not look like requires_grad


def _is_suspect(name: str) -> bool:
    if name == "requires_grad" or _MISSPELT.fullmatch(name):
        return True
    if len(_HARMLESS) < _MAX_HARMLESS_NAMES:
        _HARMLESS.add(name)
    return False


class TrainingSetup(Listener):
    """Listener that reports untrained or unregistered parameters, and misspelled attributes."""

    needs = ()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Line that calls backward -> number of optimizer steps before the line's first backward.
        self._first: dict[CodePosition | None, int] = {}
        # Code objects around the first backward, if the recording began before the program.
        self._codes: list[CodeType] = []

    def on_block_error(self, event: BlockRaised) -> None:
        if NO_PARAMETERS in str(event.error):
            look_for_plain_lists(self.events, self.program, event.error)

    def on_backward_start(self, event: BackwardBegan) -> None:
        if self.program.frame is None and not self._codes:
            self._codes = [frame.f_code for frame in user_frames(event.frame)]
        live, asked = event.live, {fn for fn, _ in event.asked}
        if self.program.options.every_call and live.call.accumulates:
            leaves = [fn.variable for fn in leaves_of(live.own) if not asked or fn in asked]
            look_for_strangers(self.events, self.program, leaves)

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        look_at_attributes(self.events, self.program, self._codes)
        look_for_repeated_layers(self.events, self.program)
        own = self.program.table.every()
        look_for_unused_modules(self.events, self.program, backwards, own)
        look_for_steps(self.events, self.program, backwards, self._first, own)

    def on_resume(self, event: Resumed) -> None:
        self._first = {}


def look_at_attributes(events: Events, program: Program, more: Iterable[CodeType]) -> None:
    """Report attributes that are meant as `requires_grad` of a parameter but have no effect.

    Args:
        events: receives the events.
        program: the recorded program, which knows the modules.
        more: code objects of the program, in addition to those of the frames around the recording.
    """
    modules, known = program.table.modules(), None
    parameters = [parameter for _, parameter in program.parameters()]
    named = chain.from_iterable([module.__dict__ for module, _ in modules])
    if _HARMLESS.issuperset(named) and not any(map(attrgetter("__dict__"), parameters)):
        return  # the usual case
    for module, path in modules:
        own = module.__dict__
        suspects = [] if _HARMLESS.issuperset(own) else list(filter(_is_suspect, own))
        # `module.requires_grad = False` is right if the module's parameters are frozen, too.
        found = [("", name) for name in suspects if own[name] is False and _learns(module, name)]
        for name, parameter in module._parameters.items():
            written = None if parameter is None else parameter.__dict__
            if written:
                found += [(name, key) for key in written if _MISSPELT.fullmatch(key)]
        for name, attribute in found:
            known = known if known is not None else list(codes(program, more=more))
            label = ".".join(filter(None, (path, name)))
            assignment = AttributeAssignment(owner=label, attribute=attribute)
            events.note(assignment, find_assignment(known, attribute))


def look_for_repeated_layers(events: Events, program: Program) -> None:
    """Report lists of modules that contain one module with parameters several times."""
    for module, path in program.table.modules():
        if type(module) not in _LISTS or len(set(map(id, module._modules.values()))) > 1:
            continue
        layers = list(module._modules.values())
        if len(layers) > 1 and layers[0] is not None and any(True for _ in layers[0].parameters()):
            kind = type(layers[0]).__name__
            event = RepeatedLayer(container=path, count=len(layers), layer=kind)
            attribute = path.rpartition(".")[2]
            events.note(event, find_assignment(codes(program), attribute))


def _learns(module: torch.nn.Module, attribute: str) -> bool:
    """Return True if a module learns although this attribute of the module is False.

    A misspelled attribute has no effect, so the result is True. For `requires_grad` it is True if
    any parameter of the module requires a gradient.
    """
    return attribute != "requires_grad" or any(each.requires_grad for each in module.parameters())


def look_for_strangers(events: Events, program: Program, leaves: Iterable[Tensor]) -> None:
    """Report parameters that get a gradient, but are neither in the model nor in an optimizer.

    Args:
        events: receives the events.
        program: the recorded program, which knows the model's modules and all called modules.
        leaves: the leaves that get a gradient.
    """
    given, own = program.table.is_given, program.table.own_ids()
    strangers = [p for p in leaves if id(p) not in own]
    look_for_plain_tensors(events, program, strangers)
    strangers = [p for p in strangers if isinstance(p, torch.nn.Parameter)]
    if not strangers or (given and not own):
        return
    known = optimized_parameters(map(id, strangers))
    lost = {id(p): p for p in strangers if id(p) not in known}
    learns = not known.isdisjoint(own)
    # If all layers are in a plain list, `own` is empty. Otherwise an optimizer has to train `own`.
    if not lost or not (learns or (known and not own)):
        return
    groups: dict[UnregisteredParameters, list[int]] = {}
    for key, parameter in lost.items():
        stray = _holder_of(parameter, program)
        if stray is None or (not learns and stray.holder not in _CONTAINERS):
            continue
        if given or stray.holder != "outside":  # without a given model, nothing is outside of it
            groups.setdefault(stray, []).append(key)
    for stray, keys in groups.items():
        place = None
        if stray.holder in _CONTAINERS:
            place = find_assignment(codes(program), stray.name.rpartition(".")[2])
        events.note(stray, place, leaves=keys)


def look_for_plain_tensors(events: Events, program: Program, leaves: Sequence[Tensor]) -> None:
    """Report leaves that are attributes of a module, but neither parameters nor in an optimizer.

    Args:
        events: receives the events.
        program: the recorded program, which knows the modules.
        leaves: the leaves that get a gradient.
    """
    lost = {id(leaf): leaf for leaf in leaves if not isinstance(leaf, torch.nn.Parameter)}
    if not lost or not program.steps.ever:
        return
    if not lost.keys().isdisjoint(optimized_parameters(lost)):
        return
    for module, path in program.table.modules():
        for name, value in vars(module).items():
            if id(value) in lost:
                label = f"{path}.{name}" if path else name
                place = find_assignment(codes(program, [type(module)]), name)
                found = UnregisteredParameters(holder="attribute", name=label)
                events.note(found, place, leaves=[id(value)])


def look_for_plain_lists(events: Events, program: Program, error: BaseException) -> None:
    """Report plain lists and dicts of layers in a model that has no registered parameters.

    Args:
        events: receives the events.
        program: the recorded program, which knows the modules.
        error: an optimizer's exception for an empty parameter list. The variables of the frames in
            its traceback are searched for the model.
    """
    frames = [] if program.frame is None else [program.frame]
    trace = error.__traceback__
    while trace is not None:
        if code_owner(trace.tb_frame.f_code.co_filename) == OWN:
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    values = [pair for frame in frames for pair in local_variables(frame).items()]
    found = program.table.modules()
    found += [(m, n) for n, m in values if issubclass(type(m), torch.nn.Module)]
    found = [(m, n) for m, n in found if not any(part._parameters for part in m.modules())]
    for module, path in {id(module): (module, path) for module, path in reversed(found)}.values():
        for name, kind, items in _plain_lists(module):
            if any(isinstance(item, (torch.nn.Module, torch.nn.Parameter)) for item in items):
                place = find_assignment(codes(program, [type(module)]), name)
                label = f"{path}.{name}" if path else name
                events.note(UnregisteredParameters(holder=kind, name=label), place)


def look_for_unused_modules(
    events: Events, program: Program, backwards: Sequence[Backward], own: Set[int]
) -> None:
    """Record the line that calls a module whose result no loss depends on.

    The line is searched in the source of the module that contains it, as `self.name(...)`.

    Args:
        events: receives the events.
        program: the recorded program, which knows the modules.
        backwards: the backwards of this step.
        own: id() of each parameter of the program's modules.
    """
    lost = set(own).difference(*(backward.reached for backward in backwards))
    if not lost or not backwards:
        return
    modules = {path: module for module, path in program.table.modules()}
    for module, path in program.table.called_modules():
        outer, _, name = path.rpartition(".")
        parameters = list(module.parameters())
        if outer in modules and parameters and lost.issuperset(map(id, parameters)):
            code = getattr(type(modules[outer]).forward, "__code__", None)
            place = find_method_call([code], name) if code is not None else None
            if place is not None and program.stack.files[place[0].co_filename] == OWN:
                events.note(UnusedModule(module=path), place, since=0)


def look_for_steps(
    events: Events,
    program: Program,
    backwards: Sequence[Backward],
    first: MutableMapping[CodePosition | None, int],
    own: Set[int],
) -> None:
    """Report repeated backwards that reach only parameters of an optimizer that never stepped.

    Args:
        events: receives the events.
        program: the recorded program, which knows which parameters were updated.
        backwards: the backwards of this step.
        first: line that calls backward -> number of optimizer steps before its first backward. New
            lines are added.
        own: id() of each parameter of the program's modules.
    """
    updated = program.steps.ever
    places: dict[CodePosition | None, list[Backward]] = {}
    for backward in backwards:
        places.setdefault(backward.call.place, []).append(backward)
    for place, group in places.items():
        keys = {key for backward in group for key in backward.reached & own}
        last = group[-1].call
        began = first.setdefault(place, group[0].call.step)
        if len(first) > _MAX_LINES:
            del first[next(iter(first))]
        if not (updated and keys and keys.isdisjoint(updated)):
            continue
        if not group[0].call.accumulates or last.step <= began:
            continue
        if keys <= optimized_parameters(keys):
            reading = group[-1].reading
            names = [reading.columns["label"][i] for k, i in reading.leaves.items() if k in keys]
            events.note(OptimizerNeverStepped(parameters=tuple(names)), place, leaves=keys)


def _holder_of(parameter: Tensor, program: Program) -> UnregisteredParameters | None:
    """Return where the program keeps a parameter that is not in the model; None if unknown."""
    owner: Any = parameter
    for module, _ in program.table.modules():
        if any(each is parameter for each in module._parameters.values()):
            owner = module
    for module, path in program.table.modules():
        for name, kind, items in _plain_lists(module):
            if any(_contains(item, owner) for item in items):
                return UnregisteredParameters(holder=kind, name=f"{path}.{name}" if path else name)
    owner_name = type(owner).__name__
    if owner is not parameter:
        del module  # the loop variable would count as a reference
        if sys.getrefcount(owner) <= _OWN_REFERENCES:
            return UnregisteredParameters(holder="forward", name=owner_name)
    frame = program.frame
    values = {} if frame is None else local_variables(frame)
    found = [(n, v) for n, v in values.items() if v is owner or _contains(v, owner)]
    # Variables that are the parameter itself come last, since a loop may have assigned them.
    for name, variable in sorted(found, key=lambda p: (p[1] is parameter, p[1] is not owner)):
        holder: Holder = "variable" if variable is parameter else "outside"
        return UnregisteredParameters(holder=holder, name=name)
    return None if owner is parameter else UnregisteredParameters(name=owner_name)


def _plain_lists(module: torch.nn.Module) -> Iterator[tuple[str, Holder, Iterable[Any]]]:
    """Yield name, kind and items of the plain lists and dicts among a module's attributes."""
    for name, value in vars(module).items():
        if name not in _MODULE_ATTRIBUTES and isinstance(value, (list, tuple)):
            yield name, "list", value
        elif name not in _MODULE_ATTRIBUTES and isinstance(value, dict):
            yield name, "dict", value.values()


def _contains(item: Any, owner: Any) -> bool:
    if item is owner or not isinstance(item, torch.nn.Module):
        return item is owner
    # `owner` is a parameter if its layer ran inside a compiled region and is unknown.
    return any(each is owner for each in chain(item.modules(), item.parameters()))
