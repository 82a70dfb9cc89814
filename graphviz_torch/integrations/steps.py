"""The steps of a training that are recorded: which are due, and where one begins and ends.

A run is one recording, and a step a slice of it. Between steps that are due nothing is watched, and
a step that is not due costs a counter. The last few recorded steps are held, for the rules that
compare steps.
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

Compiled = Literal["open", "closed", "eager"]  # as `record` takes it

_PREVIOUS = 4  # steps held for the rules that compare steps


class Due(NamedTuple):
    """The steps that are due: those named, and every n-th, up to the last one.

    If `thinned`, every n-th of the first 100 n, every 10 n-th of the first 1,000 n, and so on: 90
    for each further power of ten.
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
    """The first recorded step, for `experiment`."""

    first_call: Any  # as a recording has it
    graphs: list[Graph]


def due_steps(
    *,
    at: int | Sequence[int] | None = None,
    every: int | None = None,
    most: int = 0,
    thinned: bool = False,
) -> Due:
    """Return which steps, from 0, are due: those named and every n-th; all, if neither is given.

    Args:
        at, every: the steps, from 0.
        most: number of every n-th; 0: all.
        thinned: skip more and more steps, as `Due` says: a run of a million has 460 due steps.

    Raises:
        ValueError: for an `every` less than 1, or a step less than 0.

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
    """Records steps: `begin(step)` and `end()` stand around each, `close()` comes at the end.

    Args:
        due: whether a step is recorded.
        done: takes the step, and what was found; the last one again where an evaluation that
            follows it shows more.
        model, notes, compiled, fingerprints: as for `record`.
        experiments: the first step that is recorded keeps what `experiment` needs, in `first`.
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
        self._recording: Recording | None = None  # of the run
        self._records = False  # a step that is due
        self._step = 0
        self._previous: deque[TrainingStep] = deque(maxlen=_PREVIOUS)
        self.recorded = 0  # steps

    def begin(self, step: int) -> None:
        """Record from here on, if the step is due and none is being recorded."""
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
        """Close the recording, if there is one, and tell what was found.

        Args:
            error: what ended the step.
        """
        recording, records, self._records = self._recording, self._records, False
        if recording is None or not records:
            return
        late: list[Event] = []
        if error is None:
            late = recording.ineffective_calls() if self._previous else []
            graphs = recording.next_step()
            self._look_away(recording)
        else:
            self._recording = None
            recording.__exit__(type(error), error, None)
            graphs = recording.graphs
        if self.first is None and recording.first_call is not None:
            self.first = FirstStep(recording.first_call, graphs)
        # What runs after the last step is not training: it counts where nothing else does.
        if not graphs or (self.recorded and not any(map(_is_step, graphs))):
            self._add(late)
            return
        self.recorded += any(graph.nodes for graph in graphs)  # else it failed before the first
        step = TrainingStep(self._step, tuple(graphs))
        found = find(step, tuple(self._previous))
        self._previous.append(step)
        self._done(step, found)

    def _add(self, late: list[Event]) -> None:
        """Tell the last step again, with calls that came after it and no step follows."""
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
        """Close the recording, if there is one, and tell nothing."""
        recording, self._recording = self._recording, None
        self._records = False
        if recording is not None:
            recording.__exit__(None, None, None)

    def _look_away(self, recording: Recording) -> None:
        """A step is over."""
        recording.pause()


class LoopSteps(Steps):
    """Steps of a loop in which nobody says where they begin: they end as `StepEnds` tells.

    It counts from now on, in the thread and the process that make it, until `close()`.

    Args:
        due, done, model, notes, compiled, experiments, fingerprints: as for `Steps`.
        forked: called in a child process that was forked from this one, at its first step.
        stepped: takes a step where its first optimizer has stepped: what is lost if the process is
            killed before the next one begins. None: that is not asked for.
    """

    def __init__(
        self,
        due: Due,
        done: Callable[[TrainingStep, list[Finding]], None],
        model: torch.nn.Module | None = None,
        *,
        notes: bool = True,
        compiled: Compiled = "open",
        forked: Callable[[], object] = lambda: None,
        experiments: bool = False,
        fingerprints: bool = False,
        stepped: Callable[[TrainingStep], object] | None = None,
    ) -> None:
        self._early_step = stepped
        super().__init__(
            due,
            done,
            model,
            notes=notes,
            compiled=compiled,
            experiments=experiments,
            fingerprints=fingerprints,
        )
        with record():  # what the first recording registers cannot be registered inside a hook
            pass
        self._early = False  # is the end of a step looked at that is not due, before one that is
        self._process = os.getpid()
        self._tail = 0  # the process whose optimizer has stepped last, in a step that goes on
        self._forked: Callable[[], object] | None = forked
        self.step = 0
        self._follows = due(1)  # is the next step due
        self.begin(0)
        self._step_ends = StepEnds(self._ended, self._stepped)
        self._step_ends.open()

    def close(self, error: BaseException | None = None) -> None:
        """Count no more, and close the recording, if there is one; a forked child tells nothing."""
        self._step_ends.close()
        if os.getpid() == self._process:
            self.end(error)
        self.drop()

    @property
    def other_threads(self) -> Mapping[str, int]:
        """Numbers of backwards in threads that are not recorded, by the thread's name."""
        return self._step_ends.other_threads

    def _ended(self) -> None:
        tail, self._tail = self._tail, 0
        if os.getpid() != self._process:  # whoever began to record did it for the parent
            if tail == self._process:  # the parent's step ends here, too
                return
            if self._forked is not None:
                forked, self._forked = self._forked, None
                forked()
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

    def _stepped(self, optimizer: torch.optim.Optimizer | None) -> bool:
        """An optimizer has. Does it matter where exactly the next step begins?"""
        first = self._tail != self._process
        self._tail = os.getpid()
        if first and self._records and self._early_step and self._tail == self._process:
            graphs = self._recording.graphs if self._recording is not None else []
            if any(map(_is_step, graphs)):
                self._early_step(TrainingStep(self._step, tuple(graphs)))
        follows = self._follows and self._tail == self._process
        if follows and not self._records and not self._early and self._recording is not None:
            self._early = True
            self._recording.resume(optimizer)
        return follows or self._records

    def begin(self, step: int) -> None:
        """Record from here on, if the step is due."""
        if self._early and self._recording is not None:
            self._early = False
            self._recording.next_step()  # of what was not due
        super().begin(step)

    def _look_away(self, recording: Recording) -> None:
        if not self._follows:
            super()._look_away(recording)


def _call(event: Event) -> tuple[object, ...] | None:
    """What two tellings of one call have in common: its names and its group, for counts go on."""
    if not isinstance(event, IneffectiveCall):
        return None
    values = (getattr(event, each.name) for each in fields(event))
    names = (value for value in values if isinstance(value, str))
    return type(event), getattr(event, "group", None), *names


def _is_step(graph: Graph) -> bool:
    return graph.failure is not None or any(node.order is not None for node in graph.nodes)
