"""Mistakes in how a training is set up, looked for in its modules and optimizers as they are."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...graph.events import (
    AttributeAssignment,
    EarlySchedulerStep,
    EvalMode,
    Holder,
    StrayParameters,
    UnsteppedBackward,
)
from ...internals.frames import OWN, local_variables, outwards, owner
from ...internals.functions import BATCH_NORM, DROPOUT
from ...internals.hooks.optimizers import optimized_parameters
from ..backward import Backward
from ..program import Program
from ..program.source_lines import Place
from .code import called, codes, is_made_by_call, stored
from .events import Events

# What people write for requires_grad; `trainable` is Keras's.
_MISSPELT = re.compile(r"(?!requires_grad$)(requires?d?_?grad(ient)?s?|grad_requires?d?|trainable)")
_MODULES_OWN = frozenset(vars(torch.nn.Module()))  # attributes
_CONTAINERS = ("list", "dict")
_ITEMS = 16  # of a list that are looked at
_NAMES = 10_000  # that are remembered
_LINES = 256  # that run backwards
_OURS = 3  # references to a module that only Modules has: that tuple, a variable, an argument


_BLAMELESS: set[str] = set()  # names of attributes that look like nothing of the kind


def _is_suspect(name: str) -> bool:
    if name == "requires_grad" or _MISSPELT.fullmatch(name):
        return True
    if len(_BLAMELESS) < _NAMES:
        _BLAMELESS.add(name)
    return False


def eval_mode(program: Program) -> EvalMode | None:
    """All dropout and batch norm of a model is in eval mode, and the model too.

    Frozen batch norm in a model that trains is another thing: there the model itself is in train
    mode.
    """
    table = program.table
    every = table.modules()
    roots = [path for module, path in every if _trains(module)]
    found = []
    for module, path in every:
        acts = isinstance(module, DROPOUT) and module.p > 0
        acts = acts or (isinstance(module, BATCH_NORM) and module.track_running_stats)
        if acts and table.ran(path):
            if _trains(module) or any(not r or f"{path}.".startswith(f"{r}.") for r in roots):
                return None
            found.append((path, module))
    found = [(path, module) for path, module in found if table.learns(module)]
    if not found:
        return None
    classes = tuple(dict.fromkeys(type(module).__name__ for _, module in found))
    return EvalMode(module=found[0][0], count=len(found), classes=classes)


def _trains(module: torch.nn.Module) -> bool:
    """Is it in train mode, as a module is without the attribute, which a program may delete."""
    return bool(getattr(module, "training", True))


def note_eval_mode(events: Events, program: Program, mode: EvalMode, numbers: list[int]) -> None:
    """Note that an optimizer steps with what a backward from these nodes gave in eval mode."""
    events.note(mode, called(codes(program), "eval"), numbers)


def look_at_attributes(events: Events, program: Program) -> None:
    """Note attributes on modules and parameters that look like requires_grad and do nothing."""
    known = None
    for module, path in program.table.modules():
        own = module.__dict__
        suspects = [] if _BLAMELESS.issuperset(own) else list(filter(_is_suspect, own))
        found = [("", name) for name in suspects if name == "requires_grad" or own[name] is False]
        for name, parameter in module._parameters.items():
            written = None if parameter is None else parameter.__dict__
            if written:
                found += [(name, key) for key in written if _MISSPELT.fullmatch(key)]
        for name, attribute in found:
            known = known if known is not None else list(codes(program))
            label = ".".join(filter(None, (path, name)))
            assignment = AttributeAssignment(owner=label, attribute=attribute)
            events.note(assignment, stored(known, attribute))


def look_for_strangers(
    events: Events,
    program: Program,
    leaves: Iterable[Tensor],
    optimized: Callable[[], set[int]] = optimized_parameters,
) -> None:
    """Note parameters in the graph that no module of the model owns and no optimizer holds.

    Args:
        events: where to note it.
        program: knows the modules of the model, and all that were called.
        leaves: of the graph that runs backward.
        optimized: gives the id() of all that optimizers hold.
    """
    given, own = program.table.is_given, program.table.own()
    strangers = [p for p in leaves if id(p) not in own and isinstance(p, torch.nn.Parameter)]
    if not strangers or (given and not own):
        return
    known = optimized()
    lost = {id(p): p for p in strangers if id(p) not in known}
    learns = not known.isdisjoint(own)
    # The first module that is called may have no parameters because they are all in a list.
    if not lost or not (learns or (known and not own)):
        return
    groups: dict[StrayParameters, list[int]] = {}
    for key, parameter in lost.items():
        stray = _whose(parameter, program)
        if stray is None or (not learns and stray.holder not in _CONTAINERS):
            continue
        if given or stray.holder != "outside":  # else nobody has said what the model is
            groups.setdefault(stray, []).append(key)
    for stray, keys in groups.items():
        place = None
        if stray.holder in _CONTAINERS:
            place = stored(codes(program), stray.name.rpartition(".")[2])
        events.note(stray, place, leaves=keys)


def look_for_plain_lists(events: Events, program: Program, error: BaseException) -> None:
    """Note the plain lists and dicts of layers in a model without parameters, which register none.

    Args:
        error: came through the frames that hold the model.
    """
    frames = [] if program.frame is None else [program.frame]
    trace = error.__traceback__
    while trace is not None:
        if owner(trace.tb_frame.f_code.co_filename) == OWN:
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    values = [pair for frame in frames for pair in local_variables(frame).items()]
    found = program.table.modules()
    found += [(m, n) for n, m in values if issubclass(type(m), torch.nn.Module)]
    found = [(m, n) for m, n in found if not any(part._parameters for part in m.modules())]
    for module, path in {id(module): (module, path) for module, path in reversed(found)}.values():
        for name, kind, items in _plain_lists(module):
            if any(isinstance(item, (torch.nn.Module, torch.nn.Parameter)) for item in items):
                place = stored(codes(program, [type(module)]), name)
                label = f"{path}.{name}" if path else name
                events.note(StrayParameters(holder=kind, name=label), place)


class Schedules:
    """The schedulers of the program whose optimizers have not stepped yet.

    Known are those that the frame which enters the recording holds, by themselves or in a list or
    an object, and those that a function has made since, together with their optimizer.

    Args:
        frame: the one that enters the recording.
    """

    def __init__(self, frame: FrameType | None) -> None:
        values = {} if frame is None else local_variables(frame)
        self._names = frozenset(values)
        self._met: set[int] = set()  # id() of the optimizers that have stepped
        self._waiting = [
            (name, weakref.ref(value))
            for name, value in schedulers(values)
            if not getattr(value.optimizer, "_opt_called", False)  # private (2.13)
        ]

    def step(
        self,
        events: Events,
        program: Program,
        optimizer: Optimizer,
        frame: FrameType | None,
        label: str,
        scaled: bool,
    ) -> None:
        """An optimizer is about to step, for the first time if one of them waits for it.

        Args:
            frame: of the user's, which calls it.
        """
        if id(optimizer) in self._met or not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            return  # private (2.13)
        self._met.add(id(optimizer))
        frames = outwards(frame, program.frame)
        known = [(name, scheduler()) for name, scheduler in self._waiting]
        known += [each for one in frames for each in self._made_since(one, program, optimizer)]
        for name, scheduler in known:
            # A scaler may have skipped the steps before.
            if scheduler is None or scheduler.optimizer is not optimizer or scaled:
                continue
            if getattr(scheduler, "_step_count", 0) > 1:  # private (2.13)
                own, variable = [one.f_code for one in frames], name.rpartition(".")[2]
                place = called(own, "step", variable)
                place = place or called(codes(program, more=own), "step", variable)
                events.note(EarlySchedulerStep(scheduler=name, optimizer=label), place)
                return

    def _made_since(
        self, frame: FrameType, program: Program, optimizer: Optimizer
    ) -> Iterator[tuple[str, LRScheduler]]:
        """The variables with a scheduler that this frame has made since the recording began."""
        values = local_variables(frame)
        own = [name for name, value in values.items() if value is optimizer]
        new = frame is not program.frame or self._names.isdisjoint(own)
        if new and any(is_made_by_call(frame, name) for name in own):
            yield from ((n, v) for n, v in values.items() if issubclass(type(v), LRScheduler))


def schedulers(values: Mapping[str, Any]) -> Iterator[tuple[str, LRScheduler]]:
    """Those among some variables, in lists of them, and in the attributes of objects."""
    for name, value in values.items():
        if issubclass(type(value), LRScheduler):
            yield name, value
        elif type(value) in (list, tuple):
            items = ((f"{name}[{i}]", item) for i, item in enumerate(value[:_ITEMS]))
            yield from ((n, item) for n, item in items if issubclass(type(item), LRScheduler))
        elif not isinstance(value, (torch.nn.Module, ModuleType, type)):
            with suppress(AttributeError):
                for key, part in object.__getattribute__(value, "__dict__").items():
                    if issubclass(type(part), LRScheduler):
                        yield f"{name}.{key}", part


def look_for_steps(
    events: Events,
    program: Program,
    backwards: Sequence[Backward],
    first: MutableMapping[Place | None, int],
) -> None:
    """Note backwards that ran again and again for parameters of an optimizer that never stepped.

    Args:
        events: where to note it.
        program: knows whose parameters were updated.
        backwards: of a step.
        first: by a line, after how many steps it ran its first backward; of more steps of a run.
    """
    own, optimized, updated = program.table.every(), None, program.steps.ever
    places: dict[Place | None, list[Backward]] = {}
    for backward in backwards:
        places.setdefault(backward.call.place, []).append(backward)
    for place, group in places.items():
        keys = {key for backward in group for key in backward.reached & own}
        last = group[-1].call
        began = first.setdefault(place, group[0].call.step)
        if len(first) > _LINES:
            del first[next(iter(first))]
        if not (updated and keys and keys.isdisjoint(updated)):
            continue
        if not group[0].call.accumulates or last.step <= began:
            continue
        optimized = optimized_parameters() if optimized is None else optimized
        if keys <= optimized:
            reading = group[-1].reading
            names = [reading.columns["label"][i] for k, i in reading.leaves.items() if k in keys]
            events.note(UnsteppedBackward(parameters=tuple(names)), place, leaves=keys)


def _whose(parameter: Tensor, program: Program) -> StrayParameters | None:
    """What holds a parameter that no module of the model owns; None where that is not known."""
    owner: Any = parameter
    for module, _ in program.table.modules():
        if any(each is parameter for each in module._parameters.values()):
            owner = module
    for module, path in program.table.modules():
        for name, kind, items in _plain_lists(module):
            if any(_has(item, owner) for item in items):
                return StrayParameters(holder=kind, name=f"{path}.{name}" if path else name)
    owner_name = type(owner).__name__
    if owner is not parameter:
        del module  # of the loops above, which would count
        if sys.getrefcount(owner) <= _OURS:
            return StrayParameters(holder="forward", name=owner_name)
    frame = program.frame
    values = {} if frame is None else local_variables(frame)
    for name, variable in values.items():
        if variable is owner:
            return StrayParameters(name=name)
    return None if owner is parameter else StrayParameters(name=owner_name)


def _plain_lists(module: torch.nn.Module) -> Iterator[tuple[str, Holder, Iterable[Any]]]:
    """The lists and dicts among the attributes of a module: name, kind, items."""
    for name, value in vars(module).items():
        if name not in _MODULES_OWN and isinstance(value, (list, tuple)):
            yield name, "list", value
        elif name not in _MODULES_OWN and isinstance(value, dict):
            yield name, "dict", value.values()


def _has(item: Any, owner: Any) -> bool:
    if item is owner:
        return True
    inside = item.modules() if isinstance(item, torch.nn.Module) else ()
    return any(module is owner for module in inside)
