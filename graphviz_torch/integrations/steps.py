"""Record some steps of a training: select which are due, and delimit them.

A run is one recording, and each step a slice of it. Between due steps nothing is watched, and a
step that is not due costs a counter. The last few recorded steps are kept for rules that compare
steps.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

import torch

from .. import Finding, Recording, find, record
from ..graph import Event, Graph, TrainingStep
from ..graph.events.ineffective_calls import IneffectiveCall
from ..integrations import StepEnds

Compiled = Literal["open", "closed", "eager"]  # the argument of `record`

_MAX_PREVIOUS = 4  # steps kept for the rules that compare steps


class Due(NamedTuple):
    """A predicate for steps to record: those named, and every n-th up to the last one.

    If `thinned`, every n-th of the first 100 n, then every 10 n-th up to 1,000 n, and so on: 90
    steps for each further power of ten.
    """

    named: frozenset[int]
    every: int | None
    last: float
    thinned: bool = False

    def __call__(self, step: int) -> bool:
        if step > self.last or self.every is None:
            return step <= self.last and step in self.named
        digits = len(str(step // self.every)) if self.thinned else 0
        return step % (self.every * 10 ** max(0, digits - 2)) == 0 or step in self.named


class FirstStep(NamedTuple):
    """The first recorded step, kept for `experiment`."""

    first_call: Any  # `Recording.first_call`
    graphs: list[Graph]


def due_steps(
    *,
    at: int | Sequence[int] | None = None,
    every: int | None = None,
    most: int = 0,
    thinned: bool = False,
) -> Due:
    """Return a predicate for the steps to record: those named, every n-th, or all.

    Args:
        at, every: numbers of steps, from 0, and the interval between steps.
        most: the largest number of steps by `every`; 0 sets no limit.
        thinned: increase the interval as in `Due`: a run of a million steps has 460 due ones.

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
        raise ValueError(f"every={every}: pass the number of steps, 1 or more.")
    if any(step < 0 for step in named):
        raise ValueError(f"at={at}: steps are counted from 0.")
    if at is not None and every is None:
        return Due(named, None, max(named, default=-1))
    every = every or 1
    return Due(named, every, (most - 1) * every if most else math.inf, thinned)


class Steps:
    """Records the steps between `begin(step)` and `end()`; `close()` ends the run.

    Args:
        due: returns whether a step is recorded.
        done: called with each recorded step and its findings; called again with the last step if
            code after it, such as an evaluation, adds events.
        model, notes, compiled, fingerprints: as for `record`.
        experiments: keep in `first` what `experiment` needs of the first recorded step.
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
        self._records = False  # whether a due step is being recorded
        self._step = 0
        self._previous: deque[TrainingStep] = deque(maxlen=_MAX_PREVIOUS)
        self.recorded = 0  # number of recorded steps

    def begin(self, step: int) -> None:
        """Start recording if the step is due and no step is being recorded."""
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
        """End the recorded step, if there is one, and report its findings.

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
        # Graphs without a backward after the last step are no step, unless nothing else was
        # recorded: they belong to an evaluation.
        if not graphs or (self.recorded and not any(map(_is_step, graphs))):
            self._report_late(late)
            return
        self.recorded += any(graph.nodes for graph in graphs)  # none if it failed before any node
        step = TrainingStep(self._step, tuple(graphs))
        found = find(step, tuple(self._previous))
        self._previous.append(step)
        self._done(step, found)

    def _report_late(self, late: list[Event]) -> None:
        """Report the last step again, with events that occurred after it."""
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

    def drop(self) -> None:
        """Close the recording, if there is one, without reporting."""
        recording, self._recording = self._recording, None
        self._records = False
        if recording is not None:
            recording.__exit__(None, None, None)

    def _pause(self, recording: Recording) -> None:
        """Stop watching between two recorded steps."""
        recording.pause()


class LoopSteps(Steps):
    """Records steps of a loop that does not mark where they begin; `StepEnds` detects their ends.

    Counts steps from its creation until `close()`, in the thread and process that create it.

    Args:
        due, done, model, notes, compiled, experiments, fingerprints: as for `Steps`.
        on_fork: called in a forked child process at the end of its first step.
        on_early_step: called with the unfinished step when its first optimizer has stepped, so that
            it can be saved before the process is killed. None skips this.
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
        with record():  # registers things once that cannot be registered later, inside a hook
            pass
        self._early = False  # whether recording began before the due step, to see its beginning
        self._process = os.getpid()
        self._tail = 0  # in an unfinished step: the process whose optimizer stepped last
        self._on_fork: Callable[[], object] | None = on_fork
        self.step = 0
        self._follows = due(1)  # whether the next step is due
        self.begin(0)
        self._step_ends = StepEnds(self._on_step_end, self._on_optimizer_step)
        self._step_ends.open()

    def close(self, error: BaseException | None = None) -> None:
        """Stop counting and close the recording; a forked child reports nothing."""
        self._step_ends.close()
        if os.getpid() == self._process:
            self.end(error)
        self.drop()

    @property
    def other_threads(self) -> Mapping[str, int]:
        """Return the number of backward calls in each thread that is not recorded, by name."""
        return self._step_ends.other_threads

    def _on_step_end(self) -> None:
        tail, self._tail = self._tail, 0
        if os.getpid() != self._process:  # a forked child, which is not recorded
            if tail == self._process:  # this step was begun by the parent
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
            self.drop()

    def _on_optimizer_step(self, optimizer: torch.optim.Optimizer | None) -> bool:
        """Return whether `StepEnds` has to detect the exact beginning of the next step."""
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
        """Start recording if the step is due."""
        if self._early and self._recording is not None:
            self._early = False
            self._recording.next_step()  # discards the graphs of the step that was not due
        super().begin(step)

    def _pause(self, recording: Recording) -> None:
        if not self._follows:
            super()._pause(recording)


def _call(event: Event) -> tuple[object, ...] | None:
    """Return a key that reports of one call share: its strings and group, no counts."""
    if not isinstance(event, IneffectiveCall):
        return None
    values = (getattr(event, each.name) for each in fields(event))
    names = (value for value in values if isinstance(value, str))
    return type(event), getattr(event, "group", None), *names


def _is_step(graph: Graph) -> bool:
    return graph.failure is not None or any(node.order is not None for node in graph.nodes)
