"""Record the exceptions of calls into torch, of backwards, and of the recorded block."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch.utils.checkpoint import CheckpointError

from ...graph import Cause, Graph
from ...internals.exceptions import ignore_exceptions
from ...internals.frames import CodePosition, caller_of_vmap, user_frame
from ...internals.hooks.calls import Raised
from ...internals.tensors.pytree import tensors
from ...tracing.nodes import GradientEdge
from ...tracing.tracer import collect_nodes
from ..backward import Backward
from ..listener import BackwardEnded, BlockRaised, GraphValues, InnerBackwardRaised, Listener
from ..live import LiveGraph, producers_of
from ..program import Program
from ..program.in_place import InPlaceChange
from ..program.tracking import public_name
from ..resolver import Resolver
from .cause import Computed, explain_failure
from .node import FailingNode, find_failing_node, find_node_in_checkpoint
from .operands import ErrorKey, FailedCall, operand, refused_operands

_REFUSED = "can't optimize a non-leaf Tensor"  # PyTorch's message (2.13)


class _Rerun(NamedTuple):
    """A checkpointed segment whose second forward differs from its first."""

    position: CodePosition | None  # the line that called checkpoint
    changes: list[tuple[str, InPlaceChange]]  # names and changes of buffers that may be the cause


class _FailedBackward(NamedTuple):
    """A backward that raised."""

    error: ErrorKey
    node: FailingNode | None
    computed: list[Computed]  # the program's variables when backward raised the exception
    rerun: _Rerun | None = None


class Failures(Listener):
    """Listener that records the exceptions of a recording."""

    needs = ()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._call: FailedCall | None = None  # the last call that raised since the last backward
        self._block: FailedCall | None = None  # the exception that ended the block
        self._position = -1  # index of the graph that shows the exception `_block`
        self._in_backward = False  # True if the last backward raised the exception `_block`
        self._backwards: list[Backward] = []
        self._failed: dict[int, _FailedBackward] = {}  # by index of the graph
        self._inner: FailingNode | None = None  # the node at which a nested backward failed

    def on_call_error(self, event: Raised) -> None:
        """Record the operands of a call that raised, with their names in the user's frames."""
        known = ErrorKey.create(event.error)
        if self._call is not None and self._call.error == known:
            return  # the exception of an inner call propagates through an outer call
        operands = []
        for tensor in tensors((event.args, event.kwargs)):
            label = ""
            outer = user_frame(event.frame)
            while not label and outer is not None:
                label, outer = self.program.label(tensor, outer), outer.f_back
            operands.append(operand(label, tensor))
        place = self.program.place(event.frame)
        self._call = FailedCall(known, public_name(event.func), place, operands)
        if (caller := caller_of_vmap(event.frame)) is not None:
            self._call.mapped = self.program.place(caller)

    def on_graph_read(self, live: LiveGraph) -> None:
        """Forget earlier exceptions of calls, which the program caught."""
        self._call = None
        if live.failed and self._block is not None:
            self._position, self._block = live.position, self._block.with_node_ids(live.ids)

    def on_inner_backward_error(self, event: InnerBackwardRaised) -> None:
        fns, _ = collect_nodes([fn for fn, _ in event.ends])
        numbered = {i: fn for fn, i in fns.items()}
        self._inner = find_node_in_checkpoint(numbered, event.error, self.program.changes)

    def on_backward_end(self, event: BackwardEnded) -> None:
        """Find the node at which backward failed, while the nodes are alive."""
        if event.error is not None:
            live, order = event.live, event.live.ran.nodes or []
            fns = {i: fn for fn, i in live.ids.items() if fn in live.own}
            node, computed = None, []
            # An error of the search below must not replace the user's error.
            with ignore_exceptions():
                computed = producers_of(live.named)
                node = find_failing_node(
                    fns,
                    order,
                    event.error,
                    self.program.changes,
                    lambda i: any(other.has_freed(live.numbers[i]) for other in self._backwards),
                )
            if node is None and self._inner is not None and order:
                node = replace(self._inner, node=order[-1], leaf=None)
            rerun = self._rerun(live) if isinstance(event.error, CheckpointError) else None
            failed = _FailedBackward(ErrorKey.create(event.error), node, computed, rerun)
            self._failed[live.position] = failed
        self._backwards.append(event.backward)
        self._inner = None

    def _rerun(self, live: LiveGraph) -> _Rerun:
        """Return the checkpointed segment whose forward was running again as backward failed.

        This is the first segment with a node that has not run.
        """
        ran = set(live.ran.nodes or ())
        part = next((p for p in live.checkpoints.parts if not p.nodes <= ran), None)
        changes = self.program.changes
        found = [
            (f"{path}.{name}" if path else name, change)
            for module, path in self.program.table.called_modules()
            # Buffers of PyTorch's own modules, such as num_batches_tracked, cannot be the cause.
            if not type(module).__module__.startswith("torch.")
            for name, buffer in module._buffers.items()
            if buffer is not None and (change := changes.last_write(buffer)) is not None
        ]
        return _Rerun(None if part is None else part.position, found)

    def on_block_error(self, event: BlockRaised) -> None:
        """Find out whether a call, a backward, or something else raised the exception."""
        error, place = event
        known = ErrorKey.create(error)
        failed = self._call
        if failed is None or failed.error != known:
            failed = FailedCall(known, place=place)
            if _REFUSED in known.message:
                failed = replace(failed, operands=refused_operands(error))
        last = self._failed.get(len(self._backwards) - 1)
        self._in_backward = last is not None and last.error == known
        if self._in_backward:
            failed = replace(failed, raised=None if place == failed.place else place)
        self._block, self._position = failed, len(self._backwards) - 1

    def on_step_end(self, event: None) -> None:
        self._backwards, self._failed, self._position = [], {}, -1

    def edges_before_error(self) -> list[GradientEdge] | None:
        if self._in_backward:
            return None
        operands = [] if self._block is None else self._block.operands
        return [(part.fn, part.output_nr) for part in operands if part.fn is not None]

    def graph_values(self, graph: Graph, resolver: Resolver) -> GraphValues:
        backward = resolver.backward
        own = self._failed.get(backward.position)
        if backward.position == self._position:
            failed = self._block
        else:  # if this backward raised an exception, the program caught it
            failed = None if own is None else FailedCall(own.error, "backward", backward.call.place)
        if failed is None:
            return {}
        failure = failed.value(resolver)
        if own is not None and own.node is not None and failed.error == own.error:
            before = self._backwards[: backward.position]
            first = self.program.origins.first
            failure = explain_failure(failure, resolver, own.node, own.computed, before, first)
        elif own is not None and own.rerun is not None and failed.error == own.error:
            causes = [Cause("checkpoint", resolver.line(own.rerun.position))]
            for name, change in own.rerun.changes:
                causes.append(Cause(change.operation, resolver.line(change.place), label=name))
            failure = replace(failure, causes=tuple(causes))
        return {"failure": failure}
