"""Record the collectives of this rank, each with its line, module and node.

Every collective of `torch.distributed` that this process starts while it is recorded is counted
once, however many tensors the collective takes. The caller may be the program, a hook of a module
or parameter, DTensor, or DDP's reducer. Communication by other libraries, and by threads that the
program itself starts, is not counted.

`Collective.waited_where` is known if Python code waits for the result, as for `Work` objects and
for the functional collectives that DTensor uses. It is unknown if C++ code waits, as in DDP's
reducer. Durations are measured for gloo only, on the CPU's clock. On a GPU, a CUDA stream waits for
the result, and the duration of this wait is not measured here.
"""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

import torch

from ...graph import Collective, CollectiveKind, CollectivePhase, Graph, RankTime
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ...internals.hooks.calls import running_function
from ...internals.hooks.collectives import CollectiveAwaited, CollectiveIssued, RankGroup
from ...internals.hooks.engine import running_node
from ...internals.tensors.memory import storage_id, storage_ref
from ...internals.tensors.metadata import tensor_meta
from ..listener import BackwardBegan, BackwardEnded, GraphValues, Listener
from ..live import LiveGraph
from ..program import Program
from ..program.source_lines import Source
from ..queries.collectives import CollectiveRow
from ..resolver import Resolver
from .owners import CollectivePayload, MessageContent, PayloadResolver


@mutable(eq=False)
class _Record:
    """The record of a collective (such as all_reduce) that has started."""

    kind: CollectiveKind
    nbytes: int
    dtype: str
    group: RankGroup
    phase: CollectivePhase
    source: Source | None
    owner: CollectivePayload
    asynchronous: bool
    peer: int | None
    number: int | None  # sequence number of the forward node to which the collective belongs
    run: int  # number of the running backward in the step, from 1 on; 0 if none was running
    node: int | None  # id of the node that the running backward was running
    call: int  # number of the collective's call
    times: RankTime | None  # durations of the call and of the wait for its result; None: unknown
    waited: CodePosition | None = None  # the user's line that waited for the result


class Collectives(Listener):
    """Listener that records the collectives (such as all_reduce) that this rank starts."""

    needs = ("transfers",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._records: list[_Record] = []
        # Functional collectives whose result is pending, by the storage id of the result.
        self._pending: dict[int, tuple[Any, _Record]] = {}
        # Collectives with a `Work` object for which the program may still wait, by call number.
        self._calls: dict[int, _Record] = {}
        # In a process that is not a rank yet, the resolver is created at the first collective.
        self._owners: PayloadResolver | None = None
        if program.options.is_distributed:
            self._owners = PayloadResolver(program)
            self.on_module_start = self._owners.messages.on_module_start
            self.on_module_end = self._owners.messages.on_module_end
        self._live: LiveGraph | None = None  # graph of the running backward
        self._backwards = 0  # number of backwards started in this step
        self._began = time.perf_counter()

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._live = event.live
        self._backwards += 1
        if self._owners is not None:
            self._owners.begin_backward(event)

    def on_backward_end(self, event: BackwardEnded) -> None:
        self._live = None
        if self._owners is not None:
            self._owners.end_backward(event)

    def on_collective(self, event: CollectiveIssued) -> None:
        live, fn = self._live, running_node()
        ids = {} if live is None else live.ids
        program = self.program
        if not program.is_here() and fn not in ids:
            # The collective comes from another thread, and from no node of this program's graph.
            # The thread alone does not decide, since the engine runs nodes in threads of its own.
            return
        frame, node = sys._getframe(1), ids.get(fn)
        owners = self._owners = self._owners or PayloadResolver(program)
        owner = owners.find(event, frame, live, node)
        place, library = program.stack.source(frame)
        if place is None and live is not None:
            place = live.call.place
        in_backward = live is not None or fn is not None
        if len(event.group.ranks) > 1 and fn is None and torch.is_grad_enabled():
            self._append_row(event, place)
        given = [] if event.kind == "barrier" else event.given  # a barrier's tensor has no content
        record = _Record(
            event.kind,
            sum(tensor_meta(tensor).nbytes or 0 for tensor in given),
            tensor_meta(given[0]).dtype if given else "",
            event.group,
            self._phase(frame, in_backward=in_backward),
            None if place is None else (place, library),
            owner,
            event.asynchronous,
            event.peer,
            self._number(event, frame),
            self._backwards if live is not None else 0,
            node,
            event.call,
            self._times(event),
        )
        self._records.append(record)
        owners.messages.on_collective(event)
        for tensor in event.made:
            self._pending[storage_id(tensor)] = storage_ref(tensor), record
        if not event.made:
            self._calls[event.call] = record

    def _append_row(self, event: CollectiveIssued, place: CodePosition | None) -> None:
        """Append a row for the tensors with an autograd node that a collective changed."""
        filled = [tensor for tensor in event.filled if tensor.requires_grad]
        fns = [(tensor, tensor.grad_fn) for tensor in filled]
        changed = {int(fn._sequence_nr()): t for t, fn in fns if fn is not None}
        if changed:
            labels = {number: self.program.variable(t) for number, t in changed.items()}
            self.program.log.append(CollectiveRow(event.kind, place, labels))

    def on_collective_wait(self, event: CollectiveAwaited) -> None:
        if event.tensor is None:
            begun = None if event.call is None else self._calls.pop(event.call, None)
            if begun is not None:
                begun.asynchronous = begun.asynchronous and not event.at_once
                begun.waited = None if event.at_once else self.program.place(sys._getframe(1))
                self._add_wait(begun, event)
            return
        ref, record = self._pending.pop(storage_id(event.tensor), (None, None))
        if record is not None and ref is not None and not ref.expired():
            record.waited = self.program.place(sys._getframe(1))
            self._add_wait(record, event)

    def on_step_end(self, event: None) -> None:
        self._records, self._backwards, self._calls = [], 0, {}
        if self._owners is not None:
            self._owners.messages.forget()
        pending = self._pending.items()
        self._pending = {key: each for key, each in pending if not each[0].expired()}

    def graph_values(self, graph: Graph, resolver: Resolver) -> GraphValues:
        owners = self._owners
        if owners is None:
            return {}
        made = []
        for each in self._records:
            node, owner = _node(each, resolver), each.owner
            # The node's module is used only if the collective's parameters are unknown.
            at = None if owner.parameters else node
            content = owners.messages.content(each.call) or MessageContent(each.phase, owner.module)
            collective = Collective(
                each.kind,
                each.nbytes,
                each.dtype,
                len(each.group.ranks),
                owners.group(each.group),
                content.phase,
                node,
                content.module or ("" if at is None else graph.nodes[at].module),
                "" if each.source is None else resolver.source(each.source),
                owner.parameters,
                each.asynchronous,
                resolver.line(each.waited),
                each.peer,
                owner.change,
                owner.gradients,
                each.run == resolver.backward.position + 1,
                () if each.times is None else (each.times,),
            )
            made.append(collective)
        return {"collectives": tuple(made)}

    def close(self) -> None:
        self._pending, self._calls = {}, {}
        if self._owners is not None:
            self._owners.close()

    def _times(self, event: CollectiveIssued) -> RankTime | None:
        group = event.group
        if not group.on_cpu or any(tensor.device.type != "cpu" for tensor in event.given):
            return None
        inside = event.end - event.begin
        return RankTime(group.rank, group.name, event.begin - self._began, None, inside)

    def _add_wait(self, record: _Record, event: CollectiveAwaited) -> None:
        if record.times is not None:
            times, inside = record.times, event.end - event.begin
            seconds = event.end - self._began - times.begin
            standing = (times.standing or 0.0) + inside
            record.times = times._replace(seconds=seconds, standing=standing)

    def _number(self, event: CollectiveIssued, frame: FrameType) -> int | None:
        """Return the sequence number of the forward node whose call started a collective.

        This is the latest node, if the call into torch that created it, or the forward of its
        custom Function, is still running. Returns None otherwise.
        """
        program, last = self.program, event.number - 1
        inside = running_function() is not None and last >= program.origins.end
        if inside or program.stack.custom_function(frame) is not None:
            return last
        return None

    def _phase(self, frame: FrameType, *, in_backward: bool) -> CollectivePhase:
        if in_backward:
            return "backward"
        if self.program.steps.is_own_call(frame):
            return "optimizer"
        return "forward" if self.program.in_forward else "other"


def _node(record: _Record, resolver: Resolver) -> int | None:
    """Return the id of the node that a collective belongs to, in one backward's graph, or None.

    For a collective that ran in backward, this is the node that backward was running. For others
    it is the forward node to which the collective belongs.
    """
    if record.run:
        return resolver.ran_node(record.node, record.run)
    return None if record.number is None else resolver.node(record.number)
