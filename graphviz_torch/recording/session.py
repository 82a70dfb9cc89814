"""All that lives inside a recording's block alone: what listens, and what it has noted so far.

The seams tell the session what happens; it tells the listeners, in an order that stands here:

    a module's call   before_module · after_module      an optimizer   begin_step · end_step
    a call into torch Calls                             a copy         copied
    a backward        begin ─► LiveBackward ─► end ─► Backward
    an exception      fail
    at the end        graphs ─► Graph, one for each backward
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch

from ..graph import NO_PARAMETERS, Graph, SavedKind, Transfer
from ..graph.gc import uncollected
from ..internals.frames import user_frame
from ..internals.grad_scaler import loss_scale
from ..internals.hooks.dispatch import Call, sequence_number
from ..internals.hooks.engine import EngineCall
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.pytree import flatten
from ..internals.tensors.saved_tensors import NOT_TOLD, TELLS
from ..internals.tracers import is_trial
from .backward import Backward
from .calls import Calls
from .cuts.cuts import Cuts
from .events.listener import EventListener
from .events.training import look_at_attributes, look_for_plain_lists, look_for_steps
from .failures.in_place import Changes
from .failures.node import FailingNode
from .failures.operands import Error, Failed, FailedCalls, refused_operands
from .fast_paths import FastPaths
from .gradients.finite import FiniteResults
from .graphs import graphs_of
from .live import BackwardCall, InnerBackward, LiveBackward
from .live_nodes import End, ends_of, sinks
from .program import Program
from .source_lines import raised
from .steps.history import GraphHistory
from .steps.optimizers import Steps
from .tracking import Tracker
from .transfers.copies import Copies

_REFUSED = "can't optimize a non-leaf Tensor"  # what PyTorch says (2.13)


class Options(NamedTuple):
    """What is noted beside modules and lines."""

    gradients: bool | Literal["finite"]
    transfers: bool
    memory: bool
    notes: bool


def _harmless(listen: Any) -> Any:
    """A listener whose reads no mode sees, and of which no exception reaches the program."""

    @wraps(listen)
    def guarded(session: Session, *event: Any) -> Any:
        try:
            with unseen_calls():
                return listen(session, *event)
        except Exception as error:
            session.program.miss(error)

    return guarded


class Session:
    """All that lives inside the block alone: what listens, and what it has noted so far.

    Args:
        model: as `record` is given it.
        frame: the one that enters the block.
        options: of `record`.
    """

    def __init__(
        self, model: torch.nn.Module | None, frame: FrameType | None, options: Options
    ) -> None:
        self._options = options
        self.program = program = Program(model, frame)
        self.steps = Steps()
        self.tracker = tracker = Tracker()
        self.cuts = Cuts(tracker, program)
        self.copies = Copies(program, tracker)
        self.changes = Changes(program.place)
        self.failed_calls = FailedCalls(program)
        self.events = EventListener(program, self.changes)
        self.history = GraphHistory(program.variable, program.source)
        self.results = FiniteResults() if options.gradients == "finite" else None
        self.calls = Calls(
            *(program, self.steps, tracker, self.cuts, self.copies),
            *(self.changes, self.failed_calls, self.results, self.events),
        )
        self._fast_paths = FastPaths(self.calls, self.cuts)
        self.backwards: list[Backward] = []
        self.reached: set[int] = set()  # id() of the variables that they reached
        self.live: LiveBackward | None = None
        self.failed: Failed | None = None  # the exception that ended the block
        self._inner: FailingNode | None = None  # of a backward that the live one runs
        self._first = sequence_number()  # nodes from this number on are in no backward yet
        self._ends: list[End] = []  # outputs of the last outermost module call

    # What the seams tell.

    def before_module(self, module: torch.nn.Module, args: Any, frame: FrameType) -> None:
        """A module's forward is about to run."""
        program = self.program
        if program.is_here():
            try:
                program.stack.before(module, args, frame)
                self._fast_paths.before(module, frame)
            except Exception as error:
                program.miss(error)

    def after_module(self, module: torch.nn.Module, output: Any, frame: FrameType) -> None:
        """It has run; `output` is None if it raised."""
        program = self.program
        if program.is_here():
            try:
                if module is self._fast_paths.layer:
                    program.attempt(self._fast_paths.after, module, output, frame)
                if program.stack.after(module, frame) and output is not None:
                    plain = type(output) is torch.Tensor
                    tensors = [("", output)] if plain else flatten(output, ask=False)
                    self._ends = [end for _, tensor in tensors for end in ends_of(tensor)]
            except Exception as error:
                program.miss(error)

    @_harmless
    def begin_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], frame: FrameType
    ) -> None:
        """An optimizer is about to step."""
        if self.program.is_here():
            place = self.program.place(frame)
            self.changes.steps(optimizer, place)
            self.events.step(optimizer, place, frame)
            if self.steps.begin(optimizer, args, frame, place):
                self._use_again()

    @_harmless
    def end_step(self, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped."""
        if self.program.is_here():
            self.changes.stepped(optimizer)
            self.events.life.stepped()
            if self.steps.end(optimizer):
                self._use_again()

    @_harmless
    def copied(self, call: Call) -> None:
        """An operator was dispatched that may copy between devices."""
        live = self.live  # read once: another thread's call may find that it has just ended
        self.copies.see(call, self.calls.calling, live, len(self.backwards) + (live is not None))

    @_harmless
    def release(self) -> None:
        """Tensors are about to be swapped, which those refuse whose nodes are alive."""
        self._ends = []
        self.cuts.release()

    @_harmless
    @uncollected
    def begin(self, called: EngineCall) -> LiveBackward | InnerBackward | None:
        """Backward is about to run."""
        if not self.program.is_here():
            return None
        attempt = self.program.attempt
        ends = [end for output in called.outputs for end in attempt(ends_of, output) or ()]
        if not ends or is_trial():
            return None  # the engine will object
        if self.live is not None:
            return InnerBackward(ends)
        self.steps.count += self.changes.take_step_by_hand()
        attempt(self.steps.begin_backward)
        live = self.live = self._read(ends, sys._getframe(1), called)
        self.events.events.begin_backward()
        if self._options.gradients is True:
            frame = user_frame(sys._getframe(1))
            attempt(self.events.begin_backward, called.outputs, live, frame)
        elif live.has_notes:
            attempt(self.events.look_at_values, called.outputs, live)
        if self._options.gradients:
            asked = [end for value in called.inputs for end in attempt(ends_of, value) or ()]
            attempt(partial(live.hook, asked, finite=self._options.gradients == "finite"))
        if self.results is None:
            attempt(live.look, self.history)
        return live

    @_harmless
    @uncollected
    def end(
        self,
        live: LiveBackward | InnerBackward | None,
        gradients: Any,
        error: BaseException | None,
    ) -> None:
        """Backward has run, or raised."""
        if live is None:
            return
        if isinstance(live, InnerBackward):
            if error is not None:
                self._inner = self.program.attempt(live.failing_node, error, self.changes)
            return
        try:
            if error is not None:
                failure = error, self.changes, self.backwards, self._inner
                self.program.attempt(live.fail, *failure)
            self.backwards.append(live.finish(gradients or ()))
            self.reached |= self.backwards[-1].reached
            self.events.end_backward(self.backwards[-1])
        finally:
            live.unhook()
            self.live = self._inner = None
            self.program.attempt(self.steps.end_backward)
            self._first = sequence_number()

    @_harmless
    def fail(self, error: BaseException) -> None:
        """An exception ends the block."""
        failed, place = self.failed_calls.last, raised(error, self.program.stack.files)
        known = Error.of(error)
        if failed is None or failed.error != known:
            failed = Failed(known, place=place)
            if _REFUSED in known.message:
                failed = replace(failed, operands=refused_operands(error))
            if NO_PARAMETERS in known.message:
                self.program.attempt(look_for_plain_lists, self.events.events, self.program)
        if self.backwards and self.backwards[-1].error == known:
            failed = replace(failed, raised=None if place == failed.place else place)
        else:
            ends = [(part.fn, part.output_nr) for part in failed.operands if part.fn is not None]
            ends = ends or self._last_ends()
            if ends or not self.backwards:
                live = self._read(ends, sys._getframe(1), failed=True)
                failed = failed.among(live.ids)
                self.backwards.append(live.finish())
        self.failed = failed

    def close(self) -> None:
        """The block is over, or was interrupted."""
        if self.live is not None:
            self.live.unhook()
        self.tracker.clear()  # what is cut in place holds its own node, which holds it

    @uncollected
    def graphs(self, unmatched: list[Transfer] | None = None) -> list[Graph]:
        """A graph for each backward so far; where there is none, of what the forward made."""
        backwards, frame = list(self.backwards), sys._getframe(1)
        with unseen_calls():
            if not backwards and (ends := self._last_ends()):
                backwards = [self._read(ends, frame).finish()]
            updated, events, program = self.steps.updated, self.events.events, self.program
            program.attempt(look_at_attributes, events, program)
            program.attempt(look_for_steps, events, program, backwards, updated)
            return graphs_of(
                *(backwards, self.program, self.copies.records, unmatched or []),
                *(updated, self.failed, self.events.events),
            )

    def _use_again(self) -> None:
        """Gradients are used that an optimizer has used before."""
        if self.backwards:
            last = self.backwards.pop()
            self.backwards.append(replace(last, uncleared=self.steps.uncleared))

    def _last_ends(self) -> list[End]:
        ends = list(self._ends)
        with suppress(Exception):
            for _, tensor in self.program.names_in(self.program.frame):
                if tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= self._first:
                    ends.append((tensor.grad_fn, tensor.output_nr))
        return sinks(ends)

    def _read(
        self,
        ends: list[End],
        frame: FrameType,
        called: EngineCall | None = None,
        *,
        failed: bool = False,
    ) -> LiveBackward:
        """Read what leads to these ends, while it is alive; the next step begins."""
        program = self.program
        here = user_frame(frame)
        named = program.names_in(here)
        parameters = program.table.known()
        live = LiveBackward(
            ends,
            parameters + named,
            parameters,
            self.cuts.take(failed=failed),
            BackwardCall(
                program.place(here),
                program.callers(here),
                self.steps.count,
                called is not None and called.keeps,
                called is None or called.accumulates,
                self._loss_scale(),
                self.steps.uncleared,
            ),
            position=len(self.backwards),
            reached=self.reached,
            failed=failed,
        )
        if self._options.memory:
            known: list[tuple[SavedKind, torch.Tensor]] = []
            known += [("parameter", tensor) for _, tensor in parameters]
            known += [("buffer", tensor) for tensor in program.table.buffers()]
            known += [("input", tensor) for tensor in program.stack.inputs()]
            if TELLS:
                program.attempt(live.keep, known)
            else:
                program.leave_out(NOT_TOLD)
        if self.results is not None:
            live.note(self.results.take())
        self._ends = []
        for listener in (self.calls, self.failed_calls, program):
            listener.begin_step()
        return live

    def _loss_scale(self) -> torch.Tensor | None:
        """What the last backward's loss was multiplied by."""
        return None if self.calls.scaler is None else loss_scale(self.calls.scaler)
