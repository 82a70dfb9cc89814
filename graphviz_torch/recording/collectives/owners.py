"""Find the module and the parameters to which the tensors of a collective or message belong.

How the parameters of a collective are found depends on the code that starts the collective:

    fully_shard, FSDP   variables of the calling frames contain the parameters
    DDP's reducer       the tensor is a bucket of gradients. Its parameters are those whose
                        gradients are ready and have sizes that add up to the bucket's size
    by hand             the tensor is a parameter, or the `.grad` of a parameter

Pipelines send messages between two ranks, outside of all modules. The other use of a message's
tensor shows the module, and whether the message belongs to forward or backward:

    message    tensor                           phase
    sent       result of a module               forward
    sent       gradient of a module's input     backward
    received   argument of a module             forward
    received   gradient passed to a backward    backward

Tensors are compared by storage. A detached result is therefore recognized, but a copy is not. Only
the modules that the program calls and their direct children are considered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import prod
from types import FrameType
from typing import Any
from weakref import ref

from torch import Tensor

from ...graph import CollectivePhase, TensorMeta
from ...graph.immutable import NamedTuple
from ...graph.text import ranks_text
from ...internals.functions import TensorBase
from ...internals.hooks.collectives import CollectiveIssued, RankGroup
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.sharding import find_caller, mesh_dimensions
from ...internals.tensors.memory import storage_id, storage_ref
from ...internals.tensors.pytree import flatten
from ..listener import BackwardBegan, BackwardEnded
from ..live import LiveGraph
from ..program import Program


class CollectivePayload(NamedTuple):
    """The module and parameters whose tensors a collective sends."""

    module: str = ""
    parameters: tuple[str, ...] = ()
    change: str = ""  # change of a DTensor's placements
    gradients: bool | None = None  # True: gradients of the parameters; False: their values


class PayloadResolver:
    """A finder of the modules and parameters of collectives, and of the names of process groups.

    Args:
        program: the recorded program, which knows names of modules and parameters.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        # Nodes whose gradients were in earlier buckets of this backward.
        self._bucketed: set[int] = set()
        self._dimensions: dict[str, str] = {}  # name of a process group -> its mesh dimension
        # id() of a parameter or of its `.grad` -> the parameter's name, and True for a `.grad`
        self._names: dict[int, tuple[str, bool]] = {}
        # Number of module calls begun or ended, plus optimizer steps, when `_names` was filled.
        self._moment = -1
        self.messages = Messages(program)

    def begin_backward(self, event: BackwardBegan) -> None:
        """Forget which gradients DDP sent in which bucket in the last backward."""
        self._bucketed = set()
        self.messages.on_backward_start(event)

    def end_backward(self, event: BackwardEnded) -> None:
        """Forget the names of gradients, because parameters have new gradients."""
        self._names, self._moment = {}, -1
        self.messages.on_backward_end(event)

    def close(self) -> None:
        """Forget the id() of every tensor, because the tensors may be freed."""
        self._names, self._moment = {}, -1
        self.messages.close()

    def find(
        self,
        collective: CollectiveIssued,
        frame: FrameType,
        live: LiveGraph | None,
        node: int | None,
    ) -> CollectivePayload:
        """Return the module and the parameters whose tensors a collective sends.

        Args:
            collective: the collective.
            frame: the frame that starts the collective.
            live: the graph of the running backward, if any.
            node: the node that this backward is running, if known.
        """
        caller = find_caller(frame)
        self._dimensions.update(mesh_dimensions(caller.mesh))
        table = self._program.table
        paths = [(table.path(module), name) for module, name in caller.parameters]
        names = tuple([".".join(filter(None, pair)) for pair in paths if pair[0] is not None])
        # For a collective of a wrapper, the kind shows whether it sends gradients or values.
        gradients = collective.kind in ("all_reduce", "reduce_scatter")
        if not names and collective.kind != "barrier":
            names, gradients = self._given_by_hand(collective.given)
        if not names and live is not None and node is not None and collective.kind == "all_reduce":
            names, gradients = self._bucket(collective, live, node), True
        if names:
            return CollectivePayload(_common_module(names), names, caller.change, gradients)
        # The call stack lacks the module while its forward hooks run, so `caller.module` is used.
        module = None if live is not None or caller.module is None else table.path(caller.module)
        return CollectivePayload(
            self._program.module if module is None else module, (), caller.change
        )

    def group(self, group: RankGroup) -> str:
        """Return the name of a process group: its mesh dimension, or else the list of its ranks.

        A group of all ranks has the name "".
        """
        if group.name in self._dimensions:
            return self._dimensions[group.name]
        if group.description.startswith("mesh_"):
            return group.description.removeprefix("mesh_")
        return "" if group.has_all else ranks_text(group.ranks)

    def _given_by_hand(self, given: Sequence[Tensor]) -> tuple[tuple[str, ...], bool]:
        """Return the names of the parameters whose data or gradients a program sends itself.

        A tensor belongs to a parameter if it is the parameter itself or the parameter's `.grad`.
        The second value is True if all these tensors are `.grad`.

        Args:
            given: the tensors that the collective sends.
        """
        moment = self._program.origins.moments + self._program.steps.count
        if moment != self._moment:
            self._moment, self._names = moment, {}
            for name, parameter in self._program.table.with_replaced():
                self._names[id(parameter)] = name, False
                if parameter.is_leaf and parameter.grad is not None:
                    self._names[id(parameter.grad)] = name, True
        found = [self._names[id(tensor)] for tensor in given if id(tensor) in self._names]
        return tuple(name for name, _ in found), all(gradient for _, gradient in found)

    def _bucket(self, collective: CollectiveIssued, live: LiveGraph, node: int) -> tuple[str, ...]:
        """Return the parameters whose gradients DDP sends in one bucket.

        The parameters are adjacent in the order in which gradients became ready, or in which DDP
        registered the parameters. Their sizes add up to the bucket's size. The result is () if
        there are no such parameters.

        Args:
            collective: the collective that sends the bucket.
            live: the graph of the running backward.
            node: id of the node that backward is running, whose gradient is in the bucket.
        """
        names = {at: name for name, at in live.parameters.items()}
        outputs = live.reading.columns["outputs"]
        numel = sum(TensorBase.numel(tensor) for tensor in collective.given)
        come = [at for at in (*(live.ran.nodes or ()), node) if at in names]
        registered = list(reversed(names))  # DDP's order in the first backward
        for order in (list(dict.fromkeys(come)), registered):
            order = [at for at in order if at not in self._bucketed]
            if node not in order:
                continue
            found = _adjacent_positions(
                [_numel(outputs[at]) for at in order], numel, order.index(node)
            )
            if found:
                self._bucketed.update(order[found])
                return tuple(names[at] for at in order[found])
        return ()


def _numel(outputs: Sequence[TensorMeta | None]) -> int:
    return prod(outputs[0].shape) if outputs and outputs[0] is not None else 0


def _adjacent_positions(sizes: Sequence[int], total: int, member: int) -> slice:
    """Return a slice of `sizes` with the index `member`, whose items add up to `total`.

    The slice is empty if there is none.
    """
    for first in range(member, -1, -1):
        last, added = member + 1, sum(sizes[first : member + 1])
        while added < total and last < len(sizes):
            added += sizes[last]
            last += 1
        if added == total:
            return slice(first, last)
    return slice(0)


def _common_module(names: Sequence[str]) -> str:
    """Return the path of the innermost module that contains all these parameters."""
    paths = [name.split(".")[:-1] for name in names]
    # The common prefix of the first and the last path in sorted order is a prefix of all paths.
    ends = zip(min(paths), max(paths), strict=False)
    return ".".join([first for first, _ in takewhile(lambda pair: pair[0] == pair[1], ends)])


_MAX_MODULE_DEPTH = 2  # depth 1: modules that the program calls; depth 2: their direct children


class MessageContent(NamedTuple):
    """The phase and the module to which the tensor of a message belongs."""

    phase: CollectivePhase
    module: str


class Messages:
    """The messages (sends and receives) of a recording, with each one's module and phase.

    Args:
        program: the recorded program, which knows the names of modules.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._depth = 0
        # Contents of tensors that the program may send later, by storage id.
        self._contents: dict[int, tuple[Any, MessageContent]] = {}
        # Storage id of a received tensor -> weak reference to the storage, and number of the call.
        self._taken: dict[int, tuple[Any, int]] = {}
        self._found: dict[int, MessageContent] = {}  # contents of messages, by number of the call
        # id() of a leaf that requires a gradient -> the leaf, and the path of the module called
        # with this leaf.
        self._inputs: dict[int, tuple[ref[Tensor], str]] = {}

    def content(self, call: int) -> MessageContent | None:
        """Return the content of the message that a send or receive transfers; None if unknown.

        Args:
            call: number of the send or receive.
        """
        return self._found.get(call)

    def on_collective(self, event: CollectiveIssued) -> None:
        """Store the tensor of a receive, or the content of a send, if it is known."""
        for tensor in event.given:
            key = storage_id(tensor)
            if event.kind == "recv":
                self._contents.pop(key, None)
                self._taken[key] = storage_ref(tensor), event.call
            elif event.kind == "send" and (known := self._content(key)) is not None:
                self._found[event.call] = known

    def on_module_start(self, event: ModuleBegan) -> None:
        self._depth += 1
        if self._depth <= _MAX_MODULE_DEPTH:
            path = self._program.table.path(event.module) or ""
            for tensor in _tensors(event.args):
                self._take(tensor, MessageContent("forward", path))
                if tensor.is_leaf and tensor.requires_grad:
                    weak, known = self._inputs.get(id(tensor), (None, ""))
                    if not known or weak is None or weak() is not tensor:
                        self._inputs[id(tensor)] = ref(tensor), path

    def on_module_end(self, event: ModuleEnded) -> None:
        if self._depth <= _MAX_MODULE_DEPTH:
            path = self._program.table.path(event.module) or ""
            for tensor in _tensors(event.output):
                inner = self._content(storage_id(tensor))
                module = path or ("" if inner is None else inner.module)
                self._give(tensor, MessageContent("forward", module))
        self._depth = max(0, self._depth - 1)

    def on_backward_start(self, event: BackwardBegan) -> None:
        for gradient, output in zip(event.given, event.outputs, strict=False):
            if isinstance(gradient, Tensor) and isinstance(output, Tensor):
                known = self._content(storage_id(output))
                module = "" if known is None else known.module
                self._take(gradient, MessageContent("backward", module))

    def on_backward_end(self, event: BackwardEnded) -> None:
        for gradient in event.gradients:
            if gradient is not None and storage_id(gradient):
                self._give(gradient, MessageContent("backward", ""))
        for weak, path in self._inputs.values():
            tensor = weak()
            if tensor is not None and tensor.grad is not None and storage_id(tensor.grad):
                self._give(tensor.grad, MessageContent("backward", path))

    def forget(self) -> None:
        """Forget the messages of a step and the tensors that were freed."""
        self._found, self._inputs = {}, {}
        self._contents = {k: each for k, each in self._contents.items() if not each[0].expired()}
        self._taken = {k: each for k, each in self._taken.items() if not each[0].expired()}

    def close(self) -> None:
        self._contents, self._taken, self._inputs = {}, {}, {}

    def _content(self, key: int) -> MessageContent | None:
        weak, content = self._contents.get(key, (None, None))
        return None if weak is None or weak.expired() else content

    def _give(self, tensor: Tensor, content: MessageContent) -> None:
        self._contents[storage_id(tensor)] = storage_ref(tensor), content

    def _take(self, tensor: Tensor, content: MessageContent) -> None:
        """Record that a module or a backward uses a tensor, which may have been received.

        The content of a message is final once a backward, or a module with a path, uses the tensor.
        """
        weak, call = self._taken.get(storage_id(tensor), (None, -1))
        if weak is not None and not weak.expired():
            self._found[call] = content
            if content.module or content.phase == "backward":
                del self._taken[storage_id(tensor)]


def _tensors(values: Any) -> Iterator[Tensor]:
    return (tensor for _, tensor in flatten(values, ask=False) if storage_id(tensor))
