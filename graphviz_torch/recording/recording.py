"""record(): one `with` block that notes all there is to know of a forward and a backward.

Seen: what the thread that enters it does. Not seen: the forwards of other threads, and what a
region compiled by `torch.compile` does inside.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch

from ..graph import Graph, SavedKind, Transfer
from ..graph.gc import uncollected
from ..internals.frames import caller, user_frame
from ..internals.grad_scaler import loss_scale
from ..internals.guards import set_grad_enabled
from ..internals.hooks.dispatch import Call, Watch, sequence_number
from ..internals.hooks.engine import Called, EngineWatch
from ..internals.hooks.modes import unseen_calls
from ..internals.hooks.modules import ModuleWatch
from ..internals.hooks.optimizers import StepWatch
from ..internals.tensors.pytree import flatten
from ..internals.tensors.weak import Uncounted
from ..internals.tracers import is_trial
from ..internals.warning_lines import WarningLines
from .backward import Backward
from .calls import Calls
from .copies import Copies
from .cuts import Cuts
from .events.listener import EventListener
from .events.training import look_at_attributes, look_for_steps
from .failures.in_place import Changes
from .failures.note import add_note
from .failures.operands import Error, Failed, FailedCalls, refused_operands
from .gradients.finite import FiniteResults
from .graphs import graphs_of
from .live import Call as BackwardCall
from .live import End, LiveBackward, ends_of, sinks
from .profiler import Clock, match
from .program import Program
from .source_lines import raised
from .steps.history import GraphHistory
from .steps.optimizers import Steps
from .tracking import Following
from .transfers import OPERATORS


def record(
    model: torch.nn.Module | None = None,
    *,
    gradients: bool | Literal["finite"] = True,
    transfers: bool = True,
    memory: bool | None = None,
    clock: bool = False,
    notes: bool = True,
) -> Recording:
    """Record what happens in a `with` block: forward, backward, or both.

    Args:
        model: gives modules and parameters their names, as in `named_modules()`, and has its
            parameters listed, and no others. None: the first module that is called is the model;
            another outside it goes by the variable that holds it, else by its class; and the
            parameters of every module that is called are listed, or, where none is, the caller's
            leaves whose way to the loss was cut.
        gradients: describe the gradient at every node, and time it. "finite": tell only which
            gradients are not finite, and which result of the forward was the first; that is cheaper
            than `torch.autograd.detect_anomaly`, and raises nothing.
        transfers: note the copies between devices.
        memory: note what each node keeps for backward. None: unless `gradients` is "finite".
        clock: time the copies on CUDA with `torch.profiler`, which waits for the device at the end;
            copies of its own that PyTorch makes inside a kernel are listed too.
        notes: where an exception ends the block, add to it, in at most three lines, what `find`
            says of its cause, the line and what to try. Its traceback shows them; Python 3.10
            writes them to stderr. False: leave it as it is.

    The first recording registers two things that stay and then do nothing: operators fall through
    an unused dispatch key, and an optimizer's step looks whether anybody records.

    Returns:
        A context manager; `as recording` gives the Recording, and `recording.graph` the Graph.

    Raises:
        TypeError: if `model` is not a module.
        ValueError: for other `gradients`.
        RuntimeError: for `clock=True` without CUDA.

    >>> x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    >>> with record() as recording:
    ...     y = ((x + 2) ** 2 + 3).mean()
    ...     y.backward()
    >>> [round(value, 4) for value in recording.graph.nodes[0].grad_outputs[0].values]
    [2.0, 2.6667, 3.3333]
    """
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}, not an nn.Module. Pass the model whose forward "
            "runs in the block, or nothing: with record() as recording."
        )
    if gradients not in (True, False, "finite"):
        raise ValueError(f'gradients={gradients!r}: pass True, False or "finite".')
    if clock and not torch.cuda.is_available():
        raise RuntimeError("record(clock=True) times copies on CUDA, and there is no CUDA device.")
    keeps = gradients != "finite" if memory is None else memory
    options = _Options(gradients, transfers, keeps, notes)
    return Recording(model, options, clock=clock)


_REFUSED = "can't optimize a non-leaf Tensor"  # what PyTorch says (2.13)


class Recording:
    """What `record()` noted. It holds nothing of the program once the block is left."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        options: _Options,
        *,
        clock: bool,
    ) -> None:
        self._model = model
        self._with = options
        self._clock = Clock() if clock else None
        self._entered = False
        self._session: _Session | None = None  # while the block is open
        self._seams: list[Any] = []  # what tells the session
        self._graphs: list[Graph] = []

    def __enter__(self) -> Recording:
        if self._entered:
            raise RuntimeError("a recording is entered once: call record() for every block.")
        try:
            self._entered = True
            self._session = _Session(self._model, caller(), self._with)
            self._open(self._session)
            return self
        except BaseException:
            self._close()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        enabled = torch.is_grad_enabled()
        try:
            if not self._entered:
                raise RuntimeError("this recording was not entered: with record() as recording.")
            if self._session is not None:  # else it is left already
                self._unplug()
                unmatched = self._unmatched(self._session)
                if error is not None:
                    self._session.fail(error)
                self._graphs = self._session.graphs(unmatched)
                if error is not None and self._with.notes and self._graphs:
                    add_note(error, self._graphs[-1])
        finally:
            set_grad_enabled(enabled)  # an interrupt may have come where it was off
            self._close()

    @property
    def graph(self) -> Graph:
        """The graph of the last backward. After an exception: the graph up to it.

        Without a backward: the graph of what the outermost module returned, and of the caller's
        variables.

        Raises:
            ValueError: if nothing was recorded.
        """
        graphs = self.graphs
        if not graphs:
            raise ValueError(
                "nothing was recorded: no backward ran in the block, and no module was called that "
                "returned a tensor with requires_grad. Run forward and backward inside the block."
            )
        return graphs[-1]

    @property
    def graphs(self) -> list[Graph]:
        """A graph for each backward that ran in the block, in order."""
        return self._graphs if self._session is None else self._session.graphs()

    def _open(self, session: _Session) -> None:
        """Let PyTorch's seams tell the session what happens."""
        seams: list[Any] = [
            Uncounted(),
            session.program,
            WarningLines(Calls.__torch_function__.__code__),
            ModuleWatch(session.before_module, session.after_module),
            EngineWatch(session.begin, session.end),
            StepWatch(session.begin_step, session.end_step),
        ]
        if self._clock is not None:
            seams.append(self._clock)
        if self._with.transfers:
            seams.append(Watch(OPERATORS, session.copied))
        seams.append(session.calls)
        for seam in seams:
            self._seams.append(seam)  # first: an interrupt may come between the two
            seam.__enter__()

    def _unplug(self) -> None:
        """Let nothing tell the session any more."""
        while self._seams:
            self._seams[-1].__exit__(None, None, None)
            self._seams.pop()

    def _unmatched(self, session: _Session) -> list[Transfer]:
        """The copies that the clock alone has seen; the others learn their durations."""
        return [] if self._clock is None else match(session.copies.records, self._clock.copies)

    def _close(self) -> None:
        """The block is over, or was interrupted: hold nothing of the program any more."""
        try:
            self._unplug()
        finally:
            if self._session is not None:
                self._session.close()
            self._session = self._model = None


class _Options(NamedTuple):
    """What is noted beside modules and lines."""

    gradients: bool | Literal["finite"]
    transfers: bool
    memory: bool
    notes: bool


def _harmless(listen: Any) -> Any:
    """A listener of which no exception reaches the program: what it misses is noted."""

    @wraps(listen)
    def guarded(session: _Session, *event: Any) -> None:
        try:
            listen(session, *event)
        except Exception as error:
            session.program.miss(error)

    return guarded


class _Session:
    """All that lives inside the block alone: what listens, and what it has noted so far.

    Args:
        model: as `record` is given it.
        frame: the one that enters the block.
        options: of `record`.
    """

    def __init__(
        self, model: torch.nn.Module | None, frame: FrameType | None, options: _Options
    ) -> None:
        self._with = options
        self.program = program = Program(model, frame)
        self.steps = Steps()
        following = Following()
        self.cuts = Cuts(following, program)
        self.copies = Copies(program, following)
        self.changes = Changes(program.place)
        self.failed_calls = FailedCalls(program)
        self.events = EventListener(program)
        self.history = GraphHistory(program.variable, program.source)
        self.results = FiniteResults() if options.gradients == "finite" else None
        self.calls = Calls(
            *(program, self.steps, following, self.cuts, self.copies),
            *(self.changes, self.failed_calls, self.results, self.events),
        )
        self.backwards: list[Backward] = []
        self.reached: set[int] = set()  # id() of the variables that they reached
        self.live: LiveBackward | None = None
        self.failed: Failed | None = None  # the exception that ended the block
        self._first = sequence_number()  # nodes from this number on are in no backward yet
        self._ends: list[End] = []  # outputs of the last outermost module call

    # What the seams tell.

    @_harmless
    def before_module(self, module: torch.nn.Module, args: Any, frame: FrameType) -> None:
        """A module's forward is about to run."""
        if self.program.is_here():
            self.program.stack.before(module, args, frame)

    @_harmless
    def after_module(self, module: torch.nn.Module, output: Any, frame: FrameType) -> None:
        """It has run; `output` is None if it raised."""
        if self.program.is_here():
            outermost = self.program.stack.after(module, frame)
            if outermost and output is not None:
                tensors = flatten(output, ask=False)
                self._ends = [end for _, tensor in tensors for end in ends_of(tensor)]

    @_harmless
    def begin_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], frame: FrameType
    ) -> None:
        """An optimizer is about to step."""
        if self.program.is_here():
            place = self.program.place(frame)
            self.changes.steps(optimizer, place)
            self.events.step(optimizer, place)
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

    def begin(self, called: Called) -> LiveBackward | None:
        """Backward is about to run."""
        if not self.program.is_here():
            return None
        ends = [end for output in called.outputs for end in ends_of(output)]
        if not ends or self.live is not None or is_trial():
            return None  # the engine will object; or inside a node: reentrant checkpointing
        try:
            with uncollected():
                self.steps.begin_backward()
                live = self.live = self._read(ends, sys._getframe(1), called)
                if self._with.gradients is True:
                    frame = user_frame(sys._getframe(1))
                    self.events.begin_backward(called.outputs, live, frame)
                if self._with.gradients:
                    asked = [end for value in called.inputs for end in ends_of(value)]
                    live.hook(asked, finite=self._with.gradients == "finite")
            live.look(self.history)
        except Exception as error:
            self.program.miss(error)
            if self.live is not None:
                self.live.unhook()
                self.live = None
        return self.live

    def end(self, live: LiveBackward | None, gradients: Any, error: BaseException | None) -> None:
        """Backward has run, or raised."""
        if live is not None:
            try:
                with uncollected():
                    if error is not None:
                        live.fail(error, self.changes, self.backwards)
                    self.backwards.append(live.finish(gradients or ()))
                    self.reached |= self.backwards[-1].reached
                    self.events.end_backward(self.backwards[-1])
            except Exception as ours:
                self.program.miss(ours)
                live.unhook()
            self.live = None
            self.steps.end_backward()
            self._first = sequence_number()

    def fail(self, error: BaseException) -> None:
        """An exception ends the block."""
        failed, place = self.failed_calls.last, raised(error, self.program.stack.files)
        known = Error.of(error)
        if failed is None or failed.error != known:
            failed = Failed(known, place=place)
            if _REFUSED in known.message:
                failed = replace(failed, operands=refused_operands(error))
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

    def graphs(self, unmatched: list[Transfer] | None = None) -> list[Graph]:
        """A graph for each backward so far; where there is none, of what the forward made."""
        backwards = list(self.backwards)
        if not backwards and (ends := self._last_ends()):
            backwards = [self._read(ends, sys._getframe(1)).finish()]
        with uncollected():
            look_at_attributes(self.events.events, self.program)
            updated = self.steps.updated
            look_for_steps(self.events.events, self.program, backwards, updated)
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
        with unseen_calls(), suppress(Exception):
            for _, tensor in self.program.names_in(self.program.frame):
                if tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= self._first:
                    ends.append((tensor.grad_fn, tensor.output_nr))
        return sinks(ends)

    def _read(
        self,
        ends: list[End],
        frame: FrameType,
        called: Called | None = None,
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
        if self._with.memory:
            known: list[tuple[SavedKind, torch.Tensor]] = []
            known += [("parameter", tensor) for _, tensor in parameters]
            known += [("buffer", tensor) for tensor in program.table.buffers()]
            known += [("input", tensor) for tensor in program.stack.inputs()]
            live.keep(known)
        if self.results is not None:
            live.note(self.results.take())
        self._ends = []
        for listener in (self.calls, self.failed_calls, program):
            listener.begin_step()
        return live

    def _loss_scale(self) -> torch.Tensor | None:
        """What the last backward's loss was multiplied by."""
        return None if self.calls.scaler is None else loss_scale(self.calls.scaler)
