"""Whose tensors a collective sends, and of what a message between two ranks is.

A collective's are a module's, and some of its parameters:

fully_shard, FSDP   who asks for it has the parameters at hand
DDP's reducer       a bucket of gradients: those that have come, whose sizes add up to it
by hand             a parameter, or its `.grad`, that is itself given

A pipeline sends outside of all modules. What a message carries tells its module, and forward or
backward:

sent    a module's result           forward     a gradient of what a module took    backward
taken   what a module is given      forward     what a backward begins with         backward

Compared are storages, so a detached result counts as well; a copy of it does not. Modules are those
that the program calls, and those that these call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import prod
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor

from ...graph import CollectivePhase, TensorMeta
from ...graph.text import ranks_text
from ...internals.functions import TensorBase
from ...internals.hooks.collectives.watch import CollectiveIssued, Group
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.sharding import find_caller, mesh_dimensions
from ...internals.tensors.memory import storage_id, storage_ref
from ...internals.tensors.pytree import flatten
from ..listener import BackwardBegan, BackwardEnded
from ..live import LiveGraph
from ..program import Program


class Owner(NamedTuple):
    """The tensors that a collective sends: their module and parameters."""

    module: str = ""
    parameters: tuple[str, ...] = ()
    change: str = ""  # of placements
    gradients: bool | None = None  # are gradients of the parameters sent, and not their values


class Owners:
    """Finds the module and parameters of collectives, the content of messages, and names of
    groups.

    Args:
        program: names modules and parameters.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._bucketed: set[int] = set()  # nodes whose gradients a bucket of this backward had
        self._dimensions: dict[str, str] = {}  # of meshes, by the name of the group
        # By id() of parameters and their gradients: a name, and whether it is a gradient ...
        self._names: dict[int, tuple[str, bool]] = {}
        self._moment = -1  # ... at this moment
        self.messages = Messages(program)

    def begin_backward(self, event: BackwardBegan) -> None:
        """Reset the gradients that arrived."""
        self._bucketed = set()
        self.messages.on_backward_start(event)

    def end_backward(self, event: BackwardEnded) -> None:
        """Take the parameters that have new gradients."""
        self._names, self._moment = {}, -1
        self.messages.on_backward_end(event)

    def close(self) -> None:
        """Forget the id()s of tensors, which may be freed."""
        self._names, self._moment = {}, -1
        self.messages.close()

    def find(
        self, what: CollectiveIssued, frame: FrameType, live: LiveGraph | None, node: int | None
    ) -> Owner:
        """Return the module and parameters of a collective that `frame` starts while `node`
        runs.
        """
        asking = find_caller(frame)
        self._dimensions.update(mesh_dimensions(asking.mesh))
        table = self._program.table
        paths = [(table.path(module), name) for module, name in asking.parameters]
        names = tuple([".".join(filter(None, pair)) for pair in paths if pair[0] is not None])
        gradients = what.kind in ("all_reduce", "reduce_scatter")  # of a wrapper
        if not names and what.kind != "barrier":
            names, gradients = self._given_by_hand(what.given)
        if not names and live is not None and node is not None and what.kind == "all_reduce":
            names, gradients = self._bucket(what, live, node), True
        if names:
            return Owner(_common(names), names, asking.change, gradients)
        # A hook on the call of a module runs when the call itself has ended.
        module = None if live is not None or asking.module is None else table.path(asking.module)
        return Owner(self._program.module if module is None else module, (), asking.change)

    def group(self, group: Group) -> str:
        """Return the name of a group: its mesh dimension, or its ranks; "" for all ranks."""
        if group.name in self._dimensions:
            return self._dimensions[group.name]
        if group.description.startswith("mesh_"):
            return group.description.removeprefix("mesh_")
        return "" if group.has_all else ranks_text(group.ranks)

    def _given_by_hand(self, given: Sequence[Tensor]) -> tuple[tuple[str, ...], bool]:
        """Return the given parameters, or those whose gradients are given; and whether gradients
        are.
        """
        moment = self._program.origins.moments + self._program.steps.count
        if moment != self._moment:
            self._moment, self._names = moment, {}
            for name, parameter in self._program.table.known():
                self._names[id(parameter)] = name, False
                if parameter.is_leaf and parameter.grad is not None:
                    self._names[id(parameter.grad)] = name, True
        found = [self._names[id(tensor)] for tensor in given if id(tensor) in self._names]
        return tuple(name for name, _ in found), all(gradient for _, gradient in found)

    def _bucket(self, what: CollectiveIssued, live: LiveGraph, node: int) -> tuple[str, ...]:
        """Return the parameters whose gradients are in a bucket; empty if sizes do not identify
        them.
        """
        names = {at: name for name, at in live.parameters.items()}
        outputs = live.reading.columns["outputs"]
        numel = sum(TensorBase.numel(tensor) for tensor in what.given)
        come = [at for at in (*(live.ran.nodes or ()), node) if at in names]
        registered = list(reversed(names))  # the first backward of DDP has them in this order
        for order in (list(dict.fromkeys(come)), registered):
            order = [at for at in order if at not in self._bucketed]
            if node not in order:
                continue
            found = _neighbours([_numel(outputs[at]) for at in order], numel, order.index(node))
            if found:
                self._bucketed.update(order[found])
                return tuple(names[at] for at in order[found])
        return ()


def _numel(outputs: Sequence[TensorMeta | None]) -> int:
    return prod(outputs[0].shape) if outputs and outputs[0] is not None else 0


def _neighbours(sizes: Sequence[int], total: int, member: int) -> slice:
    """Return adjacent positions, including `member`, whose sizes add up to a total; empty if
    there are none.
    """
    for first in range(member, -1, -1):
        last, added = member + 1, sum(sizes[first : member + 1])
        while added < total and last < len(sizes):
            added += sizes[last]
            last += 1
        if added == total:
            return slice(first, last)
    return slice(0)


def _common(names: Sequence[str]) -> str:
    """Return the path of the module that contains all these parameters."""
    paths = [name.split(".")[:-1] for name in names]
    ends = zip(min(paths), max(paths), strict=False)  # in order, what these share all share
    return ".".join([first for first, _ in takewhile(lambda pair: pair[0] == pair[1], ends)])


_DEPTH = 2  # of modules


class Content(NamedTuple):
    """The content of a message."""

    phase: CollectivePhase
    module: str


class Messages:
    """The contents of a recording's messages.

    Args:
        program: names the modules.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._depth = 0
        self._contents: dict[int, tuple[Any, Content]] = {}  # by storage, of what may be sent
        self._taken: dict[int, tuple[Any, int]] = {}  # by storage, the number of the call
        self._found: dict[int, Content] = {}  # by the number of the call
        # By id() of what will have a `.grad`: itself, and the module that it is given to.
        self._inputs: dict[int, tuple[ref[Tensor], str]] = {}

    def content(self, call: int) -> Content | None:
        """Return the content of a call's message; None if unknown."""
        return self._found.get(call)

    def on_collective(self, event: CollectiveIssued) -> None:
        """Handle a message that is sent, or will be received."""
        for tensor in event.given:
            key = storage_id(tensor)
            if event.kind == "recv":
                self._contents.pop(key, None)
                self._taken[key] = storage_ref(tensor), event.call
            elif event.kind == "send" and (known := self._content(key)) is not None:
                self._found[event.call] = known

    def on_module_start(self, event: ModuleBegan) -> None:
        self._depth += 1
        if self._depth <= _DEPTH:
            path = self._program.table.path(event.module) or ""
            for tensor in _tensors(event.args):
                self._take(tensor, Content("forward", path))
                if tensor.is_leaf and tensor.requires_grad:
                    weak, known = self._inputs.get(id(tensor), (None, ""))
                    if not known or weak is None or weak() is not tensor:
                        self._inputs[id(tensor)] = ref(tensor), path

    def on_module_end(self, event: ModuleEnded) -> None:
        if self._depth <= _DEPTH:
            path = self._program.table.path(event.module) or ""
            for tensor in _tensors(event.output):
                inner = self._content(storage_id(tensor))
                module = path or ("" if inner is None else inner.module)
                self._give(tensor, Content("forward", module))
        self._depth = max(0, self._depth - 1)

    def on_backward_start(self, event: BackwardBegan) -> None:
        for gradient, output in zip(event.given, event.outputs, strict=False):
            if isinstance(gradient, Tensor) and isinstance(output, Tensor):
                known = self._content(storage_id(output))
                module = "" if known is None else known.module
                self._take(gradient, Content("backward", module))

    def on_backward_end(self, event: BackwardEnded) -> None:
        for gradient in event.gradients:
            if gradient is not None and storage_id(gradient):
                self._give(gradient, Content("backward", ""))
        for weak, path in self._inputs.values():
            tensor = weak()
            if tensor is not None and tensor.grad is not None and storage_id(tensor.grad):
                self._give(tensor.grad, Content("backward", path))

    def forget(self) -> None:
        """Keep received tensors for the next step, and forget the others."""
        self._found, self._inputs = {}, {}
        self._contents = {k: each for k, each in self._contents.items() if not each[0].expired()}
        self._taken = {k: each for k, each in self._taken.items() if not each[0].expired()}

    def close(self) -> None:
        self._contents, self._taken, self._inputs = {}, {}, {}

    def _content(self, key: int) -> Content | None:
        weak, content = self._contents.get(key, (None, None))
        return None if weak is None or weak.expired() else content

    def _give(self, tensor: Tensor, content: Content) -> None:
        self._contents[storage_id(tensor)] = storage_ref(tensor), content

    def _take(self, tensor: Tensor, content: Content) -> None:
        """Note that a received tensor is used, by the innermost named module."""
        weak, call = self._taken.get(storage_id(tensor), (None, -1))
        if weak is not None and not weak.expired():
            self._found[call] = content
            if content.module or content.phase == "backward":
                del self._taken[storage_id(tensor)]


def _tensors(values: Any) -> Iterator[Tensor]:
    return (tensor for _, tensor in flatten(values, ask=False) if storage_id(tensor))
