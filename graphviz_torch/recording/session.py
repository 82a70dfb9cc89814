"""All that lives inside a recording's block alone: the program, and the tuple of listeners.

seams of internals/hooks ─► Session ─► the program's services, then the listeners, in order
                              │
                              ├─ a backward begins: read ─► Live ─► told ─► it ends ─► Backward
                              └─ at the end: graphs_of(backwards, listeners) ─► Graphs
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ..graph import Graph, SavedKind
from ..graph.events import IdleCall
from ..graph.gc import uncollected
from ..internals.compiler.stance import EagerStance
from ..internals.dynamo import compiles_backward
from ..internals.frames import OTHER, owner, user_frame
from ..internals.hooks.calls import CallWatch
from ..internals.hooks.collectives import CollectiveWatch
from ..internals.hooks.dispatch import Dispatched, OperatorWatch, sequence_number
from ..internals.hooks.engine import BackwardBegan, BackwardEnded, EngineWatch
from ..internals.hooks.modes import unseen_calls
from ..internals.hooks.modules import ModuleWatch
from ..internals.hooks.optimizers import StepWatch
from ..internals.hooks.regions import RegionWatch
from ..internals.hooks.stream import methods, tell
from ..internals.tasks import programs
from ..internals.tensors.weak import Uncounted
from ..internals.tracers import is_trial
from ..internals.warning_lines import WarningLines
from ..tracing.nodes import GradFn, read
from ..tracing.tracer import connected
from . import listeners
from .backward import Backward, BackwardCall
from .compiled.regions import Regions
from .compiled.trace import OperationTrace
from .failures.failures import Failures
from .graphs import graphs_of
from .listener import (
    Began,
    BlockRaised,
    Ended,
    InnerBackwardRaised,
    Listener,
    Reach,
    Resumed,
)
from .live import Live
from .live_nodes import End, ends_of, leaves_of, numbers_of, sinks
from .memory import Memory
from .modules.fast_paths import FastPaths
from .options import Options
from .program import Program
from .source_lines import raised

Kind = TypeVar("Kind", bound=Listener)
_COMPILED = "gradients are not recorded: compiled autograd runs this backward"


class _InnerBackward(NamedTuple):
    """A backward that a node of another one runs."""

    ends: list[End]


class Session:
    """The program, and those who listen to it.

    Args:
        model: as `record` is given it.
        frame: the one that enters the block.
        options: of `record`.
    """

    def __init__(self, model: Module | None, frame: FrameType | None, options: Options) -> None:
        self.program = program = Program(model, frame, options)
        self.backwards: list[Backward] = []
        kinds = [kind for kind in listeners.LISTENERS if kind.wanted(options)]
        found = [kind(program) for kind in kinds]
        self._calls = CallWatch((*program.services, *found), program.key, program.miss)
        fast_paths = FastPaths(program, self._calls)
        self.listeners: tuple[Listener, ...] = (fast_paths, *found)
        self._listening = (fast_paths, *program.services, *found)
        self._live: Live | None = None
        # id() of the variables that backwards reached, of this step and the one before.
        self._reached: set[int] = set()
        self._first = sequence_number()  # nodes from this number on are in no backward yet

    def listener(self, kind: type[Kind]) -> Kind | None:
        """The listener of this kind, if there is one."""
        return next((one for one in self.listeners if isinstance(one, kind)), None)

    def seams(self) -> list[Any]:
        """What tells of the program, in the order in which it is opened."""
        found: list[Any] = [
            Uncounted(self._release),
            self.program,
            RegionWatch(OperationTrace, Regions.wanted(self.program)),
            WarningLines(CallWatch.__torch_function__),
            ModuleWatch(self._telling("module_began"), self._telling("module_ended")),
            EngineWatch(self._begin, self._end),
            StepWatch(self._telling("stepping"), self._telling("stepped")),
        ]
        if self.program.options.compiled == "eager":
            found.append(EagerStance(self.program.ran_eager, self.program.miss))
        for listener in self.listeners:
            if listener.operators:
                hand_on = self._telling_operators(listener)
                watch = OperatorWatch(listener.operators, hand_on, everywhere=listener.everywhere)
                found.append(watch)
        if methods(self.listeners, "sent"):
            sent, waited = self._telling_any("sent"), self._telling_any("waited")
            found.append(CollectiveWatch(sent=sent, waited=waited))
        return [*found, self._calls]

    def _telling(self, event: str) -> Callable[[Any], None]:
        """What tells the listeners of an event of this program."""
        listening, program = methods(self._listening, event), self.program
        key, thread, miss = program.key, program.thread, program.miss

        def hand_on(happened: Any) -> None:
            if key in programs() and get_ident() == thread:  # as `program.is_here`, for every call
                tell(listening, happened, miss)

        return hand_on

    def _telling_any(self, event: str) -> Callable[[Any], None]:
        """What tells the listeners of an event of any thread: whose it is, they find out."""
        listening, miss = methods(self.listeners, event), self.program.miss
        return lambda happened: tell(listening, happened, miss)

    def _telling_operators(self, listener: Listener) -> Callable[[Dispatched], None]:
        # The engine's threads for devices work for this program too: whose operator one is, the
        # listener finds out.
        listening, miss = methods((listener,), "dispatched"), self.program.miss
        return lambda happened: tell(listening, happened, miss)

    def _tell(self, event: str, happened: object) -> None:
        tell(methods(self._listening, event), happened, self.program.miss)

    def _release(self) -> None:
        """Tensors are about to be swapped, which those refuse whose nodes are alive."""
        self.program.ends = []
        self._tell("release", None)

    def _begin(self, event: BackwardBegan) -> Live | _InnerBackward | None:
        """Backward is about to run."""
        program = self.program
        if not program.is_here():
            return None
        attempt = program.attempt
        with unseen_calls():
            ends = [end for output in event.outputs for end in attempt(ends_of, output) or ()]
            if not ends or is_trial():
                return None  # the engine will object
            if self._live is not None:
                return _InnerBackward(ends)
            live = self._live = attempt(self._read, ends, event.frame, event)
            if live is not None:
                if program.options.gradients is not False and attempt(_may_be_hooked, live):
                    live.ran.watch()
                asked = [end for value in event.inputs for end in attempt(ends_of, value) or ()]
                frame = user_frame(event.frame)
                self._tell("backward_began", Began(live, event.outputs, asked, frame))
                live.memory.release()
        return live

    @uncollected
    def _end(self, event: BackwardEnded) -> None:
        """Backward has run, or raised."""
        live, error = event.run, event.error
        if isinstance(live, _InnerBackward):
            if error is not None:
                self._tell("inner_backward_raised", InnerBackwardRaised(live.ends, error))
        elif live is not None:
            try:
                backward = live.plain(failed=error is not None)
                self.backwards.append(backward)
                self._reached |= backward.reached
                self._tell("backward_ended", Ended(live, backward, event.gradients, error))
            finally:
                live.release()
                self._live = None
                self._first = sequence_number()

    def fail(self, error: BaseException) -> None:
        """An exception ends the block."""
        trace = error.__traceback__
        while trace is not None and owner(trace.tb_frame.f_code.co_filename) == OTHER:
            trace = trace.tb_next
        if trace is not None and self.program.frame is None:
            self.program.frame = trace.tb_frame
        place = raised(error, self.program.stack.files)
        self._tell("block_raised", BlockRaised(error, place))
        failures = self.listener(Failures)
        if failures is not None and not failures.in_backward:
            with unseen_calls():
                ends = failures.ends() or self._last_ends()
                if ends or not self.backwards:
                    live = self._read(ends, sys._getframe(1), failed=True)
                    failures.attach(live.position, live.ids)
                    self.backwards.append(live.plain())
                    live.release()
                else:
                    failures.attach(len(self.backwards) - 1, {})

    def resume(self, frame: FrameType | None, optimizer: Optimizer | None) -> None:
        """The program is watched again, from this frame on.

        Args:
            frame: of the user's.
            optimizer: has stepped just now, unseen.
        """
        self.program.resume(frame)
        self._first = sequence_number()
        self._tell("resumed", Resumed(optimizer))

    def end_step(self, frame: FrameType | None) -> None:
        """A step is over: what is known by its graphs goes. The next one begins in this frame."""
        self._reached = {key for backward in self.backwards for key in backward.reached}
        self.backwards = []
        self._first = sequence_number()
        self._tell("step_ended", None)
        self.program.resume(frame)

    def close(self) -> None:
        """The block is over, or was interrupted."""
        for listener in self.listeners:
            listener.close()

    @uncollected
    def graphs(self) -> list[Graph]:
        """A graph for each backward so far; where there is none, of what the forward made."""
        backwards, frame = list(self.backwards), sys._getframe(1)
        with unseen_calls():
            if not backwards and (ends := self._last_ends()):
                live = self._read(ends, frame)
                backwards = [live.plain()]
                live.release()
            found = graphs_of(backwards, self.program, self.listeners)
        return found  # not inside, where an interrupt after the call would leave calls unseen

    @uncollected
    def idle_calls(self) -> list[IdleCall]:
        """The calls of a step without a backward that do not do what they are for."""
        if self.backwards:
            return []
        with unseen_calls():
            live = self._read([], sys._getframe(1))
            found = graphs_of([live.plain()], self.program, self.listeners)
            live.release()
        return [event for event in found[0].events if isinstance(event, IdleCall)]

    def _last_ends(self) -> list[End]:
        ends = list(self.program.ends)
        with suppress(Exception):
            for _, tensor in self.program.names_in(self.program.frame):
                if tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= self._first:
                    ends.append((tensor.grad_fn, tensor.output_nr))
        return sinks(ends)

    @uncollected
    def _read(
        self,
        ends: list[End],
        frame: FrameType,
        began: BackwardBegan | None = None,
        *,
        failed: bool = False,
    ) -> Live:
        """Read what leads to these ends, while it is alive; the next step begins."""
        program, here = self.program, user_frame(frame)
        call = BackwardCall(
            program.place(here),
            program.callers(here),
            program.steps.count if began is None else program.steps.begin_backward(),
            began is not None and began.retains,
            began is None or began.accumulates,
            program.scaling.scale(),
        )
        named, parameters = program.names_in(here), program.table.known()
        named = parameters + named
        ids, edges = own, _ = connected([fn for fn, _ in ends])
        hidden: list[GradFn] = []
        reach = Reach(own, self._reached, failed)
        for listener in self.listeners:
            hidden += program.attempt(listener.hidden, reach) or []
        if hidden:  # what lies before a cut is drawn too, before what came after
            ids, edges = connected(hidden + [fn for fn, _ in ends])
        reading = read(ids, edges, ends, named)
        leaves = reading.leaves
        reached = {id(leaf.variable) for leaf in leaves_of(own)} if hidden else leaves
        names = {id(tensor): name for name, tensor in reversed(parameters)}
        live = Live(
            position=len(self.backwards),
            call=call,
            ends=ends,
            ids=ids,
            own=own,
            reading=reading,
            numbers=numbers_of(ids, leaves),
            reached=frozenset(reached),
            # By name, for another tensor may take the place of one.
            parameters={names[key]: i for key, i in leaves.items() if key in names},
            named=named,
            failed=failed,
            memory=Memory(ids, self._known_tensors()),
        )
        self._tell("graph_read", live)
        return live

    def _known_tensors(self) -> list[tuple[SavedKind, torch.Tensor]]:
        """What a node may keep that the forward did not make."""
        program = self.program
        known: list[tuple[SavedKind, torch.Tensor]] = []
        known += [("parameter", tensor) for _, tensor in program.table.known()]
        known += [("buffer", tensor) for tensor in program.table.buffers()]
        known += [("input", tensor) for tensor in program.stack.inputs()]
        return known


def _may_be_hooked(live: Live) -> bool:
    """May the nodes of a graph be hooked, while backward runs."""
    cuda = any(device.startswith("cuda") for device in live.devices)
    if cuda and torch.cuda.is_current_stream_capturing():
        return False  # what is done on the device would become a part of the CUDA graph
    if compiles_backward():
        for node, _ in live.reading.ends:
            live.note(node, _COMPILED)
        return False
    return True
