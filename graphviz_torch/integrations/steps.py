"""Record some steps of a training run: decide which steps, and where they begin and end.

A step that has to be recorded is called due. A run has one recording, which is paused between due
steps, so that all other steps cost no more than a counter. The last few recorded steps are kept for
rules that compare steps.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal

import torch

from .. import Finding, Recording, find, record
from ..graph import Event, Graph, TrainingStep
from ..graph.events import IneffectiveCall
from ..graph.immutable import NamedTuple
from ..integrations import StepEnds

Compiled = Literal["open", "closed", "eager"]  # values of the argument `compiled` of `record`

_MAX_PREVIOUS = 4  # number of steps kept for rules that compare steps


class Due(NamedTuple):
    """A predicate: called with the number of a step, it returns whether to record the step.

    If `thinned`, the interval between recorded steps becomes ten times larger at the steps 100 n,
    1,000 n, 10,000 n and so on, where n is `every`. Then 90 steps are recorded between two
    consecutive such numbers.
    """

    named: frozenset[int]  # numbers of steps to record in any case
    every: int | None  # interval between recorded steps; None records only the `named` steps
    last: float  # number of the last step that may be recorded
    thinned: bool = False

    def __call__(self, step: int) -> bool:
        if step > self.last or self.every is None:
            return step <= self.last and step in self.named
        digits = len(str(step // self.every)) if self.thinned else 0
        return step % (self.every * 10 ** max(0, digits - 2)) == 0 or step in self.named


class FirstStep(NamedTuple):
    """The first recorded step, which `experiment` runs again."""

    first_call: Any  # `Recording.first_call`
    graphs: list[Graph]


def due_steps(
    *,
    at: int | Sequence[int] | None = None,
    every: int | None = None,
    most: int = 0,
    thinned: bool = False,
) -> Due:
    """Return a predicate for the steps to record. Without arguments, all steps are recorded.

    Args:
        at: the number of a step, or of several, counted from 0.
        every: interval between recorded steps, from step 0.
        most: maximum number of steps that `every` selects; 0 sets no limit.
        thinned: True to increase the interval in a long run, as `Due` describes. Of a million
            steps, 460 are recorded.

    Raises:
        ValueError: if `every` is less than 1, or a step less than 0.

    >>> due = due_steps(at=2, every=10)
    >>> [step for step in range(21) if due(step)]
    [0, 2, 10, 20]
    >>> due = due_steps(thinned=True)
    >>> [step for step in range(98, 131) if due(step)]
    [98, 99, 100, 110, 120, 130]
    """
    named = frozenset(() if at is None else (at,) if isinstance(at, int) else at)
    if every is not None and every < 1:
        raise ValueError(f"every={every}: pass an interval of 1 or more steps.")
    if any(step < 0 for step in named):
        raise ValueError(f"at={at}: steps are counted from 0.")
    if at is not None and every is None:
        return Due(named, None, max(named, default=-1))
    every = every or 1
    return Due(named, every, (most - 1) * every if most else math.inf, thinned)


class StepRecorder:
    """A recorder of steps. The caller marks each step by `begin(step)` and `end()`.

    Args:
        due: returns whether to record the step with a given number.
        done: called with each recorded step and its findings. It is called again with the last step
            if later code, such as an evaluation, adds events to that step.
        model, notes, compiled, fingerprints: as for `record`.
        experiments: True to keep the first recorded step in `first`, so that `experiment` can run
            it again.
    """

    def __init__(
        self,
        due: Due,
        done: Callable[[TrainingStep, list[Finding]], None],
        model: torch.nn.Module | None = None,
        *,
        notes: bool = True,
        compiled: Compiled = "open",
        experiments: bool = False,
        fingerprints: bool = False,
    ) -> None:
        self._due, self._done, self.model = due, done, model
        self._notes, self._compiled, self._experiments = notes, compiled, experiments
        self._fingerprints = fingerprints
        self.first: FirstStep | None = None
        self._recording: Recording | None = None  # the recording of the run
        self._records = False  # whether a step is being recorded
        self._watches_steps = False  # whether only optimizer steps and batches are observed
        self._step = 0
        self._previous: deque[TrainingStep] = deque(maxlen=_MAX_PREVIOUS)
        self.recorded = 0  # number of recorded steps

    def begin(self, step: int) -> None:
        """Start recording if the step is due, unless a step is already being recorded."""
        if not self._records and self._due(step):
            self._step, self._records = step, True
            if self._recording is None:
                self._recording = record(
                    self.model,
                    notes=self._notes,
                    compiled=self._compiled,
                    experiments=self._experiments and self.first is None,
                    fingerprints=self._fingerprints,
                )
                self._recording.__enter__()
            else:
                self._recording.resume()
            self._recording.number_step(step)

    def end(self, error: BaseException | None = None) -> None:
        """End the step that is being recorded, if any, and report its findings.

        Args:
            error: the exception that ended the step, or None.
        """
        recording, records, self._records = self._recording, self._records, False
        if recording is None or not records:
            return
        late: list[Event] = []
        if error is None:
            late = recording.ineffective_calls() if self._previous else []
            graphs = recording.next_step()
            self._pause(recording)
        else:
            self._recording = None
            recording.__exit__(type(error), error, None)
            graphs = recording.graphs
        if self.first is None and recording.first_call is not None:
            self.first = FirstStep(recording.first_call, graphs)
        # If no backward ran since the last recorded step, the graphs belong to an evaluation, not
        # to a step. They are reported only if no step was recorded.
        if not graphs or (self.recorded and not any(map(_is_step, graphs))):
            self._report_late(late)
            return
        # A step without nodes failed at once, and is not counted.
        self.recorded += any(graph.nodes for graph in graphs)
        step = TrainingStep(self._step, tuple(graphs))
        found = find(step, tuple(self._previous))
        self._previous.append(step)
        self._done(step, found)

    def _report_late(self, late: list[Event]) -> None:
        """Report the last step again if code after the step added events to it."""
        if not self._previous:
            return
        last = self._previous[-1]
        told = {_call(event) for graph in last.graphs for event in graph.events}
        new = [event for event in late if _call(event) not in told]
        if new:
            graph = replace(last.graph, events=(*last.graph.events, *new))
            step = TrainingStep(last.number, (*last.backwards[:-1], graph))
            self._previous.pop()
            found = find(step, tuple(self._previous))
            self._previous.append(step)
            self._done(step, found)

    def finish(self) -> None:
        """Stop recording steps, and observe only losses, optimizer steps and batches from now on.

        Losses, learning rates, schedulers and batches of a whole run are then known.
        """
        if self._watches_steps:
            return
        if self._recording is not None and self._previous:
            self._recording.observe_steps_only()
            self._watches_steps = True
        else:
            self.drop()

    def end_program(self, error: BaseException | None = None) -> None:
        """Report the calls without effect that are known once the program has ended.

        Args:
            error: the exception that ended the program, or None. What the program did not do, such
                as stepping a scheduler, is not reported after an exception.
        """
        recording = self._recording
        if self._watches_steps and recording is not None:
            self._watches_steps = False
            late = recording.end_program() if error is None else recording.ineffective_calls()
            self._report_late(late)

    def drop(self) -> None:
        """Close the recording, if there is one, without a report."""
        recording, self._recording = self._recording, None
        self._records = False
        if recording is not None:
            recording.__exit__(None, None, None)

    def _pause(self, recording: Recording) -> None:
        """Pause the recording until the next recorded step."""
        recording.pause()


class LoopSteps(StepRecorder):
    """A recorder for a loop that does not mark its steps; `StepEnds` detects where steps end.

    Steps are counted from the object's creation to `close()`, in the thread and process that
    created the object.

    Args:
        due, done, model, notes, compiled, experiments, fingerprints: as for `StepRecorder`.
        on_fork: called in a forked child process at the end of the child's first step.
        on_early_step: called with an unfinished step once the first optimizer has stepped, to save
            the step in case the process is killed. None skips this.
    """

    def __init__(
        self,
        due: Due,
        done: Callable[[TrainingStep, list[Finding]], None],
        model: torch.nn.Module | None = None,
        *,
        notes: bool = True,
        compiled: Compiled = "open",
        on_fork: Callable[[], object] = lambda: None,
        experiments: bool = False,
        fingerprints: bool = False,
        on_early_step: Callable[[TrainingStep], object] | None = None,
    ) -> None:
        self._on_early_step = on_early_step
        super().__init__(
            due,
            done,
            model,
            notes=notes,
            compiled=compiled,
            experiments=experiments,
            fingerprints=fingerprints,
        )
        with record():  # the first recording registers hooks, which is impossible inside a hook
            pass
        self._early = False  # True if recording began before the due step
        self._process = os.getpid()
        self._tail = 0  # id of the process in which an optimizer has stepped in this step, or 0
        self._on_fork: Callable[[], object] | None = on_fork
        self.step = 0
        self._follows = due(1)  # True if the next step is to be recorded
        self.begin(0)
        self._step_ends = StepEnds(self._on_step_end, self._on_optimizer_step)
        self._step_ends.open()

    def close(self, error: BaseException | None = None) -> None:
        """Report the unfinished step, stop counting, and close the recording.

        A forked child process reports nothing.
        """
        self._step_ends.close()
        if os.getpid() == self._process:
            self.end(error)
            self.end_program(error)
        self.drop()

    @property
    def other_threads(self) -> Mapping[str, int]:
        """Name of a thread that is not recorded -> number of its calls of backward."""
        return self._step_ends.other_threads

    def _on_step_end(self) -> None:
        tail, self._tail = self._tail, 0
        if os.getpid() != self._process:  # a forked child, which is not recorded
            if tail == self._process:  # the step began in the parent process
                return
            if self._on_fork is not None:
                on_fork, self._on_fork = self._on_fork, None
                on_fork()
                self.drop()
            return
        self.end()
        self.step += 1
        due, self._follows = self._follows, self._due(self.step + 1)
        if due:
            self.begin(self.step)
        if self.step > self._due.last:
            self._step_ends.rest(last=True)
            self.finish()

    def _on_optimizer_step(self, optimizer: torch.optim.Optimizer | None) -> bool:
        """Return whether `StepEnds` has to detect exactly where the next step begins."""
        first = self._tail != self._process
        self._tail = os.getpid()
        if first and self._records and self._on_early_step and self._tail == self._process:
            graphs = self._recording.graphs if self._recording is not None else []
            if any(map(_is_step, graphs)):
                self._on_early_step(TrainingStep(self._step, tuple(graphs)))
        follows = self._follows and self._tail == self._process
        if follows and not self._records and not self._early and self._recording is not None:
            self._early = True
            self._recording.resume(optimizer)
        return follows or self._records

    def begin(self, step: int) -> None:
        """Start recording if step number `step` has to be recorded."""
        if self._early and self._recording is not None:
            self._early = False
            self._recording.next_step()  # discards graphs of the previous step, which was not due
        super().begin(step)

    def _pause(self, recording: Recording) -> None:
        if not self._follows:
            super()._pause(recording)


def _call(event: Event) -> tuple[object, ...] | None:
    """Return a key that all events about the same call share; None for other events.

    The key ignores counts, which grow from report to report.
    """
    if not isinstance(event, IneffectiveCall):
        return None
    values = (getattr(event, each.name) for each in fields(event))
    names = (value for value in values if isinstance(value, str))
    return type(event), getattr(event, "group", None), *names


def _is_step(graph: Graph) -> bool:
    return graph.failure is not None or any(node.order is not None for node in graph.nodes)
