"""Record the data that enters a graph, and the calls for which autograd has no node.

A frozen module, a teacher under `no_grad` and an input batch are part of the computation, but
autograd has no node for them. Tensors that require no gradient are therefore followed by identity,
from the call that returned them to the node that uses them:

    data ──► module call without a node ──► node
    node ──► cut ──► function under no_grad ──► node

A producer of such tensors is called an entry, and is shown as one box. There are three kinds:

    module     A module call that created no node is one entry, including all calls inside.
    function   Outside of such a module call, a function call is an entry if it reads weights,
               another entry, or a result of a node that has no gradient, such as the indices of
               `topk`. In a forward, a call that reads no tensor is one too, such as `arange`.
    data       Other tensors are data. Data is named after the argument of the outermost forward, or
               else after the program's variable.

A view or a cast belongs to the entry of its operand, and so does a function of one operand that
prepares data before the data enters a graph or a forward. A part of data along a later dimension,
such as `labels[:, 1:]`, is data of its own. Buffers belong to their module and are not entries.
Custom Functions are not observed. No tensor is kept alive. A chain has at most `_MAX_DEPTH`
entries.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest
from types import FrameType
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from ..graph import Graph
from ..graph.immutable import NamedTuple
from ..internals.dynamo import is_jit_tracing
from ..internals.frames import (
    OTHER,
    code_owner,
    frame_variables,
    local_variables,
    user_frame,
)
from ..internals.functions import METADATA_CALLS, TensorBase
from ..internals.guards import no_functions
from ..internals.hooks.calls import Called
from ..internals.hooks.modules import ModuleBegan
from ..internals.tensors.metadata import tensor_meta
from ..internals.tensors.pytree import flatten, tensors
from ..internals.tensors.references import Ref
from ..internals.tensors.small_values import SmallValues, is_small
from ..internals.wrappers import wrapped_module
from .cuts.record import leaf_or_maker
from .listener import GraphValues, Listener, RegionRan
from .producers import (
    VIEW_FUNCTIONS,
    Producer,
    TensorUse,
    index_text,
    numbers_before,
    part_text,
    untracked_rows,
)
from .program import Program
from .program.call_names import bare_name
from .program.call_stack import RunningModule
from .program.variables import parameters_of
from .resolver import Resolver

_MAX_DEPTH = 200  # largest number of entries in a chain
_MAX_FRAMES = 24  # number of frames that are searched for a variable
_MAX_USES = 50_000  # number of latest uses of followed tensors that are kept
_NO_DATA = frozenset(
    (Parameter, int, float, bool, str, type(None), torch.dtype, torch.device, slice)
)
# An argument of these types is skipped if its first item cannot be data.
_LISTS = frozenset((tuple, list, torch.Size))
_LOSSES: Final = frozenset(
    getattr(F, name)
    for name in dir(F)
    if name.endswith("_loss") or name in ("cross_entropy", "binary_cross_entropy", "kl_div")
    if callable(getattr(F, name))
) | {F.binary_cross_entropy_with_logits}
# The names of these factories say nothing of the data.
_CONVERSIONS = ("tensor", "as_tensor", "asarray", "from_numpy")


_BUFFER_ENTRY = Producer("node", -1)


class _FollowedTensor(Ref):
    """A weak reference to a followed tensor, with the `Producer` that created the tensor."""

    __slots__ = ("entry", "key")

    entry: Producer
    key: int


class _Factory(NamedTuple):
    """A tensor from a call such as `arange`, which reads no tensor or one that is not followed."""

    tensor: Ref
    name: str  # of the call: "arange"
    module: str | None  # path of the running module; None outside of a forward
    base: Ref | None = None  # the tensor that is not followed


class UntrackedCalls(Listener):
    """Listener that finds the nodes that use tensors which require no gradient."""

    needs_constant = True

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._known: dict[int, _FollowedTensor] = {}  # by id() of the tensor
        self._factories: dict[int, _Factory] = {}  # by id() of the tensor
        self._uses: deque[TensorUse] = deque(maxlen=_MAX_USES)
        self._values: SmallValues[int] = SmallValues()  # values of small data, by `serial`
        self._count = 0
        self._modules = 0  # number of modules when their buffers were last registered
        follow = partial(program.remarks.attempt, self._follow_module)
        program.stack.on_call_without_node = follow

    def on_call_end(self, event: Called) -> None:
        func, args, kwargs, _, frame, start, end = event
        if end == start:
            if func not in METADATA_CALLS and not self.program.steps.running:
                if is_jit_tracing():  # torch.jit.trace would record the sizes that are read below
                    return
                with no_functions():
                    self._follow_function(event)
            return
        if type(event.result) is not Tensor:
            self._follow_results(event.result)
        alone = self.program.stack.is_alone
        for given in (*args, *kwargs.values()) if kwargs else args:
            kind = type(given)
            if kind in _NO_DATA or (kind in _LISTS and given and type(given[0]) in _NO_DATA):
                continue
            if not (alone and kind is Tensor and given.requires_grad):
                break
        else:
            return
        if is_jit_tracing():
            return
        with no_functions():
            operands = tensors(*args, *(kwargs or {}).values())
            for place, given in enumerate(operands):
                if not given.requires_grad:
                    label = "target" if place == 1 and func in _LOSSES else ""
                    self._use(given, start, end, label, frame)

    def on_region_end(self, event: RegionRan) -> None:
        if event.end > event.start:
            with no_functions():
                for given in event.given:
                    if not given.requires_grad:
                        self._use(given, event.start, event.end, "", None)

    def on_step_end(self, event: None) -> None:
        """Forget the calls of the step: a tensor that outlives the step is data of the next."""
        self._uses.clear()
        self._values = SmallValues()
        for key, known in [*self._known.items()]:
            if known.entry.kind in ("module", "function"):
                del self._known[key]

    def close(self) -> None:
        self._known = {}
        self._factories = {}

    def graph_values(self, graph: Graph, resolver: Resolver) -> GraphValues:
        values, classes = self._values.fetch(), self.program.table.classes()
        return {"untracked": untracked_rows(graph, resolver, list(self._uses), values, classes)}

    def _use(
        self, given: Tensor, start: int, end: int, label: str, frame: FrameType | None
    ) -> None:
        entry = self._source(given, label, frame)
        if entry is not None:
            self._uses.append(TensorUse(start, end, entry, tensor_meta(given)))

    def _follow_results(self, result: Any) -> None:
        """Follow the results without a gradient of a call that created a node."""
        with no_functions():
            made = tensors(result)
            rest = [one for one in made if not one.requires_grad]
            if rest and len(rest) < len(made):
                node = self._producer_of(next(one for one in made if one.requires_grad))
                if node is not None:
                    self._follow(rest, node)

    def _follow_function(self, event: Called) -> None:
        """Follow the results of a call that created no node."""
        func, args, kwargs, result, frame, *_ = event
        if type(result) is Tensor and result.requires_grad:
            return
        made = [one for one in tensors(result) if not one.requires_grad]
        name = bare_name(func)
        assigns = name == "setitem" and len(args) > 1
        given = tensors(*args, *(kwargs or {}).values()) if made or assigns else []
        if given and (assigns or any(one is given[0] for one in made)):
            label = f"assign {index_text(args[1])}" if assigns else name.strip("_")
            factory = None if assigns or given[1:] else self._factory_of(given[0])
            if factory is not None and "empty" in factory.name:  # the call fills it, as `normal_`
                self._note_factory(given, label, factory.module)
            self._follow_changed(given[0], given[1:], label, frame)
            return
        if not given or name.startswith("new_") or name.endswith("_like"):
            if name not in _CONVERSIONS:
                here = self.program.module if self.program.in_forward else None
                self._note_factory(made, name, here)
            return
        index = args[1] if name == "getitem" and len(args) > 1 else None
        if index is not None and any(isinstance(one, Tensor) for one in given[1:]):
            name = "index"
        if name in VIEW_FUNCTIONS:
            self._follow_view(given[0], made, part_text(index), frame)
            return
        weights = [one for one in given if type(one) is Parameter]
        if not weights and not any(map(self._is_followed, given)):
            if len(given) == 1:
                self._follow_view(given[0], made, "", frame)
            return
        frozen = bool(weights) and not any(one.requires_grad for one in weights)
        entry = self._add_call("function", given, made, frame, frozen=frozen)
        entry.label, entry.module = name.strip("_"), self.program.module

    def _follow_changed(
        self, changed: Tensor, others: Sequence[Tensor], label: str, frame: FrameType
    ) -> None:
        """Follow a tensor that a call changed in place, if the call read another followed tensor.

        Args:
            changed: the tensor.
            others: other operands of the call.
            label: text on the call.
            frame: the frame that made the call.
        """
        if changed.requires_grad or not any(map(self._is_followed, others)):
            return
        if type(changed) is Parameter or self._is_buffer(changed):
            return
        given = others if self._producer_of(changed) is None else (changed, *others)
        entry = self._add_call("function", given, (changed,), frame, frozen=False)
        entry.label, entry.module = label, self.program.module

    def _follow_view(
        self, given: Tensor, made: Sequence[Tensor], part: str, frame: FrameType
    ) -> None:
        """Follow views of a tensor.

        Args:
            given: the tensor.
            made: the views.
            part: the index of the views, if they are a part along a later dimension; else "".
            frame: the frame that made the call.
        """
        first = self._producer_of(given)
        copies = [one for tensor in made for one in self.program.tracker.copied_data(tensor)]
        if part and self._is_data(given, first):
            base, first = first, self._new_entry("data")
            name = (base.reason or base.label) if base is not None else self._variable(given, frame)
            first.reason = f"{name}{part}" if name else ""
            first.copies.update(base.copies if base is not None else ())
        elif part and first is not None:
            entry = self._add_call("function", (given,), made, frame, frozen=False)
            entry.label, entry.module = part, self.program.module
            return
        elif copies and first is None:
            first = self._new_entry("data")
        if first is not None:
            first.copies.update(dict.fromkeys(copies))
            self._follow(made, first)
        elif (factory := self._factory_of(given)) is not None:
            self._note_factory(made, factory.name, factory.module, factory.base)
        elif type(given) is not Parameter:
            self._note_factory(made, "", None, Ref(given))

    def _is_data(self, given: Tensor, producer: Producer | None) -> bool:
        """Return True if a tensor is data, and not a weight, a buffer or the result of a call.

        Args:
            given: the tensor.
            producer: its origin, if known.
        """
        if producer is not None:
            return producer.kind == "data"
        if type(given) is Parameter or given.requires_grad or self._is_buffer(given):
            return False
        factory = self._factory_of(given)
        return factory is None or factory.module is None

    def _is_followed(self, given: Tensor) -> bool:
        """Return True if calls that read the tensor are shown as entries (calls without a node)."""
        entry = self._producer_of(given)
        if entry is not None:
            return entry.kind != "data" or bool(entry.metas) or self.program.in_forward
        factory = self._factory_of(given)
        return factory is not None and factory.module is not None

    def _follow_module(self, call: RunningModule, output: Any, frame: FrameType) -> None:
        """Follow the results of a module call that created no node."""
        if is_jit_tracing():
            return
        with no_functions():
            if type(output) is Tensor and output.requires_grad:
                return
            made = [one for one in tensors(output) if not one.requires_grad]
            given = tensors(*frame_variables(frame, "args", "kwargs"))
            ids = set(map(id, given))
            if not made or any(id(one) in ids for one in made):
                return  # the module returns no tensor, or one of its arguments
            weights = list(parameters_of(call.module))
            frozen = bool(weights) and not any(one.requires_grad for one in weights)
            entry = self._add_call("module", given, made, frame, frozen=frozen)
            entry.module = call.names[0]
            entry.label = call.names[1] or type(call.module).__name__

    def _add_call(
        self,
        kind: Literal["module", "function"],
        given: Sequence[Tensor],
        made: Sequence[Tensor],
        frame: FrameType,
        *,
        frozen: bool,
    ) -> Producer:
        sources = []
        for one in given:
            source = None if type(one) is Parameter else self._source(one, "", frame)
            if source is not None:
                sources.append(source)
                if source.kind == "node" and one.requires_grad:
                    source.numbers = numbers_before(leaf_or_maker(one))
        entry = self._new_entry(kind)
        entry.place = self.program.place(user_frame(frame))
        entry.metas = tuple(map(tensor_meta, made))
        entry.reason = "frozen" if frozen else ""
        if torch.is_inference_mode_enabled():
            entry.reason = "inference_mode"
        elif not torch.is_grad_enabled():
            switch = self.program.switches.innermost
            by = "no_grad" if switch is None else switch.by
            entry.reason = "set_grad_enabled" if by == "switched_off" else by
            entry.switch = None if switch is None else switch.place
        depth = 1 + max([one.depth for one in sources], default=0)
        if depth <= _MAX_DEPTH:
            entry.sources, entry.depth = tuple(dict.fromkeys(sources)), depth
        self._follow(made, entry)
        return entry

    def on_outermost_start(self, event: ModuleBegan) -> None:
        """Name the data passed to an outermost forward after the arguments of that forward."""
        if is_jit_tracing():
            return
        module, _, frame = event
        args, kwargs = frame_variables(frame, "args", "kwargs")
        module = wrapped_module(module) or module
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        names = code.co_varnames[1 : code.co_argcount] if code is not None else ()
        pairs = [*zip_longest(names, args or (), fillvalue=""), *(kwargs or {}).items()]
        labels: dict[int, list[str]] = {}  # by id() of the tensor
        with no_functions():
            given = [
                (name + (path if path[:1] in ("", "[") else f".{path}"), tensor)
                for name, value in pairs
                for path, tensor in flatten(value, ask=False)
                if not tensor.requires_grad and type(tensor) is not Parameter
            ]
            for label, tensor in given:
                if label in ("", "input"):  # the name of the program's variable is more specific
                    label = self._variable(tensor, frame) or label
                labels.setdefault(id(tensor), []).append(label)
            for _, tensor in given:
                label = ", ".join(filter(None, labels[id(tensor)]))
                entry = self._source(tensor, label, None)
                if entry is not None and entry.kind == "data" and not entry.is_named:
                    entry.label, entry.is_named = label, True

    def _source(self, given: Tensor, label: str, frame: FrameType | None) -> Producer | None:
        """Return the entry (data or a call without a node) that produced a tensor, or a new one.

        Returns None for a parameter, a buffer, or an empty tensor.

        Args:
            given: the tensor.
            label: name of the tensor, if known; else "".
            frame: the frame that uses the tensor.
        """
        known = self._producer_of(given)
        is_complete = known is not None and (known.kind != "data" or bool(known.metas))
        return known if is_complete else self._data(given, label, frame)

    def _producer_of(self, given: Tensor) -> Producer | None:
        """Return the `Producer` (entry or autograd node) of a tensor; None if unknown."""
        if not given.requires_grad:
            entry = self._entry_of(given)
            return None if entry is _BUFFER_ENTRY else entry
        maker = leaf_or_maker(given)
        if isinstance(maker, Tensor):
            return None
        entry = Producer("node", -1)
        entry.numbers = (int(maker._sequence_nr()),)
        return entry

    def _entry_of(self, given: Tensor) -> Producer | None:
        known = self._known.get(id(given))
        return known.entry if known is not None and known() is given else None

    def _data(self, given: Tensor, label: str, frame: FrameType | None) -> Producer | None:
        """Return a new entry for data, or the completed entry of copied data.

        Returns None for a parameter, a buffer, or an empty tensor.

        Args:
            given: the data tensor.
            label: name of the tensor, if known; else "".
            frame: the frame that uses the tensor.
        """
        if type(given) is Parameter or given.requires_grad or self._is_buffer(given):
            return None
        if not TensorBase.numel(given):
            return None
        entry = self._entry_of(given) or self._new_entry("data")
        entry.copies.update(dict.fromkeys(self.program.tracker.copied_data(given)))
        factory = self._factory_of(given)
        if factory is not None and factory.module is not None:
            entry.kind, entry.label, entry.module = "function", factory.name, factory.module
        elif entry.reason and not label:  # "labels[:, 1:]"
            entry.label, entry.reason = entry.reason, ""
        else:
            entry.label = label or self._variable(given, frame)
            base = factory.base() if factory is not None and factory.base is not None else None
            if not entry.label and isinstance(base, Tensor):
                entry.label = self._variable(base, frame)
            entry.label = entry.label or (factory.name if factory is not None else "")
        entry.metas = (tensor_meta(given),)
        self._follow((given,), entry)
        if is_small(given):
            self._values.see(entry.serial, given)
        return entry

    def _note_factory(
        self, made: Iterable[Tensor], name: str, module: str | None, base: Ref | None = None
    ) -> None:
        """Remember the call that created tensors, such as `arange` or `data[:, None]`.

        Args:
            made: the tensors.
            name: name of the call, if it read no tensor.
            module: path of the running module; None outside of a forward.
            base: the only tensor that the call read, which is not followed.
        """
        for tensor in made:
            key = id(tensor)
            reference = Ref(tensor, partial(self._forget_factory, key))
            self._factories[key] = _Factory(reference, name, module, base)

    def _forget_factory(self, key: int, reference: Ref) -> None:
        if key in self._factories and self._factories[key].tensor is reference:
            del self._factories[key]

    def _factory_of(self, given: Tensor) -> _Factory | None:
        """Return the call that created a tensor from no tensor; None if unknown."""
        factory = self._factories.get(id(given))
        return factory if factory is not None and factory.tensor() is given else None

    def _variable(self, given: Tensor, frame: FrameType | None) -> str:
        """Return the name of a tensor's variable in `frame` or its callers; "" if there is none."""
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if code_owner(frame.f_code.co_filename) != OTHER:
                for name, value in local_variables(frame).items():
                    if value is given:
                        return name
            if frame is self.program.frame:
                break
            frame = frame.f_back
        return ""

    def _is_buffer(self, given: Tensor) -> bool:
        table = self.program.table
        if len(table) != self._modules:
            self._modules = len(table)
            self._follow(table.buffers(), _BUFFER_ENTRY)
        return self._entry_of(given) is _BUFFER_ENTRY

    def _new_entry(self, kind: Literal["data", "module", "function"]) -> Producer:
        self._count += 1
        return Producer(kind, self._count)

    def _follow(self, made: Iterable[Tensor], entry: Producer) -> None:
        for tensor in made:
            known = self._known[id(tensor)] = _FollowedTensor(tensor, self._on_free)
            known.entry, known.key = entry, id(tensor)

    def _on_free(self, known: _FollowedTensor) -> None:
        if self._known.get(known.key) is known:
            del self._known[known.key]
