"""Run a recording while its block is open.

A `Session` passes each event from the hooks to the program's services, such as the table of
parameters, and to the listeners. When a backward begins, the session reads the graph as a
`LiveGraph`. When the backward ends, the graph becomes a `Backward`. At the end of a step or of the
block, `graphs_of` builds a `Graph` from each `Backward`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ..graph import Event, Graph, SavedKind
from ..graph.events import IneffectiveCall
from ..graph.gc import with_gc_disabled
from ..graph.immutable import NamedTuple
from ..internals.dynamo import is_trial, not_compiled
from ..internals.exceptions import ignore_exceptions
from ..internals.frames import OTHER, active_programs, code_owner, user_frame
from ..internals.hooks.checkpoints import CheckpointWatch
from ..internals.hooks.dispatch import sequence_number
from ..internals.hooks.engine import EngineCalled, EngineReturned, running_node
from ..internals.hooks.modes import unseen_calls
from ..internals.hooks.watch import Callbacks, listener_methods, notify
from ..internals.tensors.metadata import HAS_SAVED_TENSOR_DATA
from ..tracing.nodes import GradFn, GradientEdge, gradient_edges_of, read_nodes
from ..tracing.tracer import collect_nodes
from . import listeners
from .backward import Backward, BackwardCall
from .graphs import graphs_of
from .listener import (
    BackwardBegan,
    BackwardEnded,
    BlockRaised,
    InnerBackwardRaised,
    Listener,
    Reach,
    Resumed,
    RowListener,
)
from .live import LiveGraph, graph_outputs, leaves_of, numbers_of
from .memory import Memory, checkpoints_of
from .program import Program
from .program.program import Options
from .program.source_lines import raising_position

_REPLAY_NOTE = "the effects of a CUDA graph replay"
_LEAVES_MODULE = "on_module_end"  # the program's services handle this event last, see `receivers`


class _InnerBackward(NamedTuple):
    """A nested backward, started by a node of another backward."""

    ends: list[GradientEdge]


class Session:
    """An open recording: the program, the program's services, and the listeners.

    Args:
        model: `model` of `record`.
        frame: the frame that enters the block.
        options: `options` of `record`.
    """

    def __init__(self, model: Module | None, frame: FrameType | None, options: Options) -> None:
        self.program = program = Program(model, frame, options)
        self.backwards: list[Backward] = []
        kinds = [kind for kind in listeners.LISTENERS if kind.is_used(options)]
        queries = [kind for kind in listeners.QUERIES if kind.is_used(options)]
        self.listeners: tuple[Listener, ...] = (
            *[kind(program) for kind in kinds],
            *[RowListener(program, query) for query in queries if query.rows_of],
        )
        program.log.ask([kind() for kind in queries])
        program.stack.on_outermost_start = self.any_thread_callback("on_outermost_start")
        program.stack.on_outermost_end = self.any_thread_callback("on_outermost_end")
        self.checkpoints = CheckpointWatch()
        self._live: LiveGraph | None = None
        # id() of each leaf that a backward of this step or of the previous step reached.
        self._reached: set[int] = set()
        self._first = sequence_number()  # sequence number of the next node after the last backward

    def callback(self, event: str) -> Callable[[Any], None]:
        """Return a callback that passes events of the program's own thread to the listeners.

        Args:
            event: name of the event's callback, such as "on_call_end".
        """
        listening, program = self._listening(event), self.program
        key, thread, miss = program.key, program.thread, program.remarks.miss

        @not_compiled
        def pass_on(happened: Any) -> None:
            # `program.is_here()` and `notify`, inlined because this runs for every module call.
            if key in active_programs() and get_ident() == thread:
                with unseen_calls():
                    for method in listening:
                        try:
                            method(happened)
                        except Exception as error:
                            miss(error)

        return pass_on

    def any_thread_callback(
        self, event: str, listeners: Sequence[Listener] | None = None
    ) -> Callable[[Any], None]:
        """Return a callback that passes events of all threads to listeners.

        Args:
            event: name of the event's callback, such as "on_collective".
            listeners: the listeners; None for all listeners of the session.
        """
        listening = listener_methods(self.listeners if listeners is None else listeners, event)
        miss = self.program.remarks.miss
        return lambda happened: notify(listening, happened, miss)

    def tell(self, event: str, happened: object) -> None:
        """Pass an event of the program to all objects that handle it.

        Args:
            event: name of the event's callback, such as "on_step_end".
            happened: the argument of the callback.
        """
        notify(self._listening(event), happened, self.program.remarks.miss)

    def receivers(self, event: str) -> tuple[object, ...]:
        """Return the objects that handle an event: the program's services, then the listeners.

        At the end of a module's forward, the order is reversed, because the services would already
        name the outer module as the running one.
        """
        program, listeners = self.program.services, self.listeners
        return (*listeners, *program) if event == _LEAVES_MODULE else (*program, *listeners)

    def _listening(self, event: str) -> Callbacks:
        return listener_methods(self.receivers(event), event)

    def release(self) -> None:
        """Drop references to autograd nodes, with which `torch.utils.swap_tensors` would fail."""
        self.tell("on_release", None)

    def begin(self, event: EngineCalled) -> LiveGraph | _InnerBackward | None:
        """Read the graph of a backward that is about to run, and notify the listeners.

        Returns:
            The graph; an `_InnerBackward` for a nested backward; None if nothing is recorded.
        """
        program = self.program
        if not program.is_here():
            return None
        with unseen_calls(), program.table.read_once():
            ends = self._ends_of(event.outputs)
            if not ends or is_trial():
                return None  # the engine will raise, or torch.func or Dynamo runs the backward
            if self._live is not None:
                return _InnerBackward(ends)
            try:
                self._live = live = self._read(ends, event.frame, event)
                if program.options.gradients is not False and live.may_be_hooked():
                    live.ran.watch()
            except Exception as error:
                program.remarks.miss(error)
            if self._live is not None:
                asked, frame = self._ends_of(event.inputs), user_frame(event.frame)
                began = BackwardBegan(self._live, event.outputs, event.given, asked, frame)
                self.tell("on_backward_start", began)
                self._live.memory.release()
        return self._live

    def _ends_of(self, values: Iterable[Any]) -> list[GradientEdge]:
        """Return the gradient edges (node, output index) of tensors; given edges are kept."""
        attempt = self.program.remarks.attempt
        return [end for value in values for end in attempt(gradient_edges_of, value) or ()]

    @with_gc_disabled
    def end(self, event: EngineReturned) -> None:
        """After a backward, keep its graph without tensors and nodes, and notify the listeners."""
        live, error = event.run, event.error
        if isinstance(live, _InnerBackward):
            if error is not None:
                self.tell("on_inner_backward_error", InnerBackwardRaised(live.ends, error))
        elif live is not None:
            try:
                backward = live.plain(failed=error is not None)
                self.backwards.append(backward)
                self._reached |= backward.reached
                ended = BackwardEnded(live, backward, event.gradients, error)
                with self.program.table.read_once():
                    self.tell("on_backward_end", ended)
            finally:
                live.release()
                self._live = None
                self._first = sequence_number()

    @with_gc_disabled
    def fail(self, error: BaseException) -> None:
        """Read the graph up to the exception that ends the block, and notify the listeners."""
        trace = error.__traceback__
        while trace is not None and code_owner(trace.tb_frame.f_code.co_filename) == OTHER:
            trace = trace.tb_next
        if trace is not None and self.program.frame is None:
            self.program.frame = trace.tb_frame
        place = raising_position(error, self.program.stack.files)
        self.tell("on_block_error", BlockRaised(error, place))
        with unseen_calls():
            behind = [listener.edges_before_error() for listener in self.listeners]
            ends = [end for each in behind for end in each or ()] or self._last_ends()
            if None not in behind and (ends or not self.backwards):
                live = self._read(ends, sys._getframe(1), failed=True)
                self.backwards.append(live.plain())
                live.release()

    def resume(self, frame: FrameType | None, optimizer: Optimizer | None) -> None:
        """Continue recording after a pause.

        Args:
            frame: the user's frame that continues.
            optimizer: an optimizer whose step just before this was not observed.
        """
        self.program.resume(frame)
        self._first = sequence_number()
        self.tell("on_resume", Resumed(optimizer))

    def drop_detail(self) -> None:
        """Close all listeners except those that observe the steps after the last recorded step."""
        self.release()
        self.program.forget_modules()
        self.program.stack.close()
        for listener in self.listeners:
            if not listener.sees_later_steps:
                listener.close()
        self.listeners = tuple([each for each in self.listeners if each.sees_later_steps])

    def on_cuda_graph_replay(self) -> None:
        """Handle a CUDA graph replay, which may have changed any tensor.

        A replay inside a forward or backward is ignored, because it is part of that computation.
        """
        if self.program.is_here() and not self.program.in_forward and running_node() is None:
            self.program.remarks.leave_out(_REPLAY_NOTE)
            self.tell("on_resume", Resumed(None))

    def end_step(self, frame: FrameType | None) -> None:
        """End a training step, drop the records about its graphs, and continue in `frame`."""
        self._reached = {key for backward in self.backwards for key in backward.reached}
        self.backwards = []
        self._first = sequence_number()
        self.tell("on_step_end", None)
        self.program.resume(frame)

    def close(self) -> None:
        """Drop all references at the end of the block, or after an interrupt."""
        self.program.stack.close()
        for listener in self.listeners:
            listener.close()

    @with_gc_disabled
    def graphs(self) -> list[Graph]:
        """Return a graph for each backward so far, or the graph of the forward if there is none.

        If there is neither, calls without effect are returned as the events of an empty graph.
        """
        backwards, frame = list(self.backwards), sys._getframe(1)
        with unseen_calls(), self.program.table.read_once():
            if not backwards and (ends := self._last_ends()):
                live = self._read(ends, frame, peek=True)
                backwards = [live.plain()]
                live.release()
            found = graphs_of(backwards, self.program, self.listeners)
        records = [] if backwards else self.program.events.noted_before(0)
        if any(isinstance(record.event, IneffectiveCall) for record in records):
            found = [Graph((), (), events=tuple(self.ineffective_calls()))]
        return found  # not inside `with`, where an interrupt could leave calls hidden

    @with_gc_disabled
    def ineffective_calls(self) -> list[Event]:
        """Return the calls without effect in this step; [] if a backward ran in the step."""
        if self.backwards:
            return []
        with unseen_calls():
            live = self._read([], sys._getframe(1))
            found = graphs_of([live.plain()], self.program, self.listeners)
            live.release()
        return [event for event in found[0].events if isinstance(event, IneffectiveCall)]

    def _last_ends(self) -> list[GradientEdge]:
        ends = list(self.program.stack.ends)
        with ignore_exceptions():
            for _, tensor in self.program.names_in(self.program.frame):
                if tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= self._first:
                    ends.append((tensor.grad_fn, tensor.output_nr))
        return graph_outputs(ends)

    @with_gc_disabled
    def _read(
        self,
        ends: list[GradientEdge],
        frame: FrameType,
        began: EngineCalled | None = None,
        *,
        failed: bool = False,
        peek: bool = False,
    ) -> LiveGraph:
        """Read the graph that ends at these gradient edges, and pass it to the listeners.

        Args:
            ends: the roots of the graph.
            frame: the frame that called backward, or that reads the graph.
            began: the call of backward; None if the graph is read without a backward.
            failed: True if an exception ended the recording.
            peek: True if the graph is read without a backward, and the program continues.
        """
        program, here = self.program, user_frame(frame)
        call = BackwardCall(
            program.place(here),
            program.callers(here),
            program.steps.count
            if began is None
            else program.steps.begin_backward(accumulates=began.accumulates),
            began is not None and began.retains,
            began is not None and began.creates,
            began is None or began.accumulates,
            program.scaling.scale(),
        )
        named, parameters = program.names_in(here), program.table.with_replaced()
        named = parameters + named
        ids, edges = own, _ = collect_nodes([fn for fn, _ in ends])
        hidden: list[GradFn] = []
        reach = Reach(own, self._reached, failed, peek)
        for listener in self.listeners:
            hidden += program.remarks.attempt(listener.hidden_nodes, reach) or []
        if hidden:  # the graph also gets nodes upstream of cuts, before the other nodes
            ids, edges = collect_nodes(hidden + [fn for fn, _ in ends])
        reading = read_nodes(ids, edges, ends, named)
        leaves = reading.leaves
        reached = {id(leaf.variable) for leaf in leaves_of(own)} if hidden else leaves.keys()
        # `backward(inputs=...)` reaches only the leaves among `inputs`.
        if began is not None and began.accumulates and began.inputs:
            asked = leaves_of(fn for fn, _ in self._ends_of(began.inputs))
            reached = reached & {id(leaf.variable) for leaf in asked}
        names = {id(tensor): name for name, tensor in reversed(parameters)}
        checkpoints = checkpoints_of(
            ids, self.checkpoints.frames() if HAS_SAVED_TENSOR_DATA else ()
        )
        live = LiveGraph(
            position=len(self.backwards),
            call=call,
            ends=ends,
            ids=ids,
            own=own,
            reading=reading,
            numbers=numbers_of(ids, leaves),
            reached=frozenset(reached),
            # The keys are names instead of ids, since the program may replace parameters later.
            parameters={names[key]: i for key, i in leaves.items() if key in names},
            named=named,
            failed=failed,
            checkpoints=checkpoints,
            memory=Memory(ids, self._known_tensors(), named, checkpoints),
        )
        self.tell("on_graph_read", live)
        return live

    def _known_tensors(self) -> list[tuple[SavedKind, torch.Tensor]]:
        """Return the parameters, buffers and inputs that nodes may save, with their kinds."""
        program = self.program
        known: list[tuple[SavedKind, torch.Tensor]] = []
        known += [("parameter", tensor) for _, tensor in program.table.with_replaced()]
        known += [("buffer", tensor) for tensor in program.table.buffers()]
        known += [("input", tensor) for tensor in program.stack.inputs()]
        return known
