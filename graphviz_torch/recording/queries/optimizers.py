"""Find steps of optimizers, and those without the intended effect.

An optimizer may step with a learning rate of 0 or below, or without gradients. A program may create
a new optimizer for each step or epoch, which loses its state, such as momentum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from ...findings.rules.meaning.optimizers import (
    RecreatedOptimizer,
    StepWithoutGradients,
    ZeroLearningRate,
)
from ...graph.events import OptimizerStep
from ...graph.immutable import mutable
from ..program.events import MethodCall
from ..program.log import Found, Query
from ..program.rows import (
    BackwardRow,
    OptimizerRow,
    SchedulerRow,
    StepEndRow,
    StepRow,
)

_MAX_OPTIMIZERS = 64
_MAX_LEAVES = 10_000  # number of leaves that are remembered between backward and step
_MIN_STEPS = 3  # fewer steps may be intended, and are not reported


class OptimizerSteps(Query):
    """Find each optimizer step, with its learning rates."""

    needs = ()

    def on_step(self, row: StepRow) -> Iterator[Found]:
        step = OptimizerStep(optimizer=row.name, foreign=row.foreign, maximizes=row.maximizes)
        rates = tuple([group.rate for group in row.groups])
        yield Found(step, row.place, latest={"learning_rates": rates})


@mutable
class _GroupRates:
    """Numbers of steps in which a parameter group had no positive learning rate."""

    idle: int = 0  # number of steps with learning rate 0
    last: int = 0  # number of latest consecutive steps with learning rate 0
    negative: int = 0  # number of steps with a learning rate below 0


@mutable
class _OptimizerRates:
    """An optimizer, and the learning rates of all its steps."""

    step: StepRow  # the last step
    groups: list[_GroupRates] = field(default_factory=list)


class ZeroLearningRates(Query):
    """Find optimizers that step with a learning rate of 0 or below."""

    def __init__(self) -> None:
        self._rates: dict[int, _OptimizerRates] = {}  # by optimizer
        self._optimizers: dict[int, OptimizerRow] = {}
        self._schedulers: dict[int, dict[int, SchedulerRow]] = {}  # by optimizer and by scheduler

    def on_optimizer(self, row: OptimizerRow) -> None:
        if len(self._optimizers) < _MAX_OPTIMIZERS:
            self._optimizers[row.optimizer] = row

    def on_scheduler(self, row: SchedulerRow) -> None:
        if row.optimizer in self._optimizers:
            self._schedulers.setdefault(row.optimizer, {})[row.scheduler] = row

    def on_step(self, row: StepRow) -> None:
        if row.optimizer not in self._optimizers:
            return
        known = self._rates.setdefault(row.optimizer, _OptimizerRates(row))
        known.step = row
        known.groups += [_GroupRates() for _ in row.groups[len(known.groups) :]]
        for count, group in zip(known.groups, row.groups, strict=False):
            rate = group.rate
            if rate is None or rate > 0:
                count.last = 0
            else:
                count.idle += rate == 0
                count.last = count.last + 1 if rate == 0 else 0
                count.negative += rate < 0

    def events_of_run(self) -> Iterator[Found]:
        for known in self._rates.values():
            name, place, steps = known.step.name, known.step.place, known.step.steps
            sizes = [group.size for group in known.step.groups]
            counts = [c for c, size in zip(known.groups, sizes, strict=False) if size]
            if any(count.negative for count in counts):
                number = max(count.negative for count in counts)
                idle = ZeroLearningRate(what="negative", optimizer=name)
                yield Found(idle, place, latest={"count": number, "steps": steps})
            if steps >= _MIN_STEPS and counts and all(count.idle == steps for count in counts):
                idle = ZeroLearningRate(what="all", optimizer=name)
                yield Found(idle, place, latest={"count": steps, "steps": steps})
            elif counts and (number := min(count.last for count in counts)) >= _MIN_STEPS:
                row = self._optimizers[known.step.optimizer]
                schedulers = list(self._schedulers.get(row.optimizer, {}).values())
                only = schedulers[0] if len(schedulers) == 1 else None
                idle = ZeroLearningRate(
                    what="end", optimizer=name, scheduler="" if only is None else only.name
                )
                call = "" if only is None else MethodCall("step", only.variable, row.around)
                yield Found(
                    idle, place, latest={"count": number, "steps": steps, "scheduled": call}
                )
            else:
                for i, (count, size) in enumerate(zip(known.groups, sizes, strict=False)):
                    if size and steps >= _MIN_STEPS and count.idle == steps:
                        idle = ZeroLearningRate(
                            what="group", optimizer=name, group=i, groups=len(sizes)
                        )
                        yield Found(idle, place, latest={"count": steps, "steps": steps})


@mutable
class _EmptySteps:
    """The steps of an optimizer before which no parameter had a gradient."""

    count: int = 0
    last: StepRow | None = None  # the last step of the optimizer


class StepsWithoutGradients(Query):
    """Find optimizers whose parameters have no gradient at any step."""

    def __init__(self) -> None:
        self._has_run = False  # True once a backward ran
        # Leaves that a backward reached after the last step of the leaf's optimizer.
        self._reached: set[int] = set()
        self._empty: dict[int, _EmptySteps] = {}  # by optimizer

    def on_backward(self, row: BackwardRow) -> None:
        self._has_run = True
        self._reached |= row.leaves
        if len(self._reached) > _MAX_LEAVES:  # keep only parameters, not inputs
            self._reached = set(row.reached)

    def on_step(self, row: StepRow) -> None:
        if len(self._empty) >= _MAX_OPTIMIZERS:
            return
        known = self._empty.setdefault(row.optimizer, _EmptySteps())
        known.last = row
        if self._has_run and not row.has_closure:
            known.count += not row.has_gradients and self._reached.isdisjoint(row.parameters)
            self._reached -= row.parameters

    def events_of_run(self) -> Iterator[Found]:
        for known in self._empty.values():
            row = known.last
            if row is not None and 2 <= row.steps <= known.count and row.learning:
                empty = StepWithoutGradients(optimizer=row.name)
                yield Found(empty, row.place, (), row.learning, {"count": row.steps})


@mutable
class _StateCounts:
    """Numbers of steps with and without optimizer state (such as Adam's averages).

    All optimizers with the same first parameter are counted together.
    """

    first: StepRow  # the first step
    fresh: int = 0  # number of steps that began without optimizer state
    old: int = 0  # number of steps that began with optimizer state
    keeps: bool = False  # True if an optimizer had state after a step


class LostStates(Query):
    """Find optimizers that are re-created repeatedly, and so lose their state (momentum)."""

    def __init__(self) -> None:
        self._counts: dict[int, _StateCounts] = {}  # by number of the first parameter

    def on_step(self, row: StepRow) -> None:
        counts = self._counts.setdefault(row.first, _StateCounts(row))
        counts.fresh += not row.has_state
        counts.old += row.has_state
        while len(self._counts) > _MAX_OPTIMIZERS:
            del self._counts[next(iter(self._counts))]

    def on_step_end(self, row: StepEndRow) -> None:
        if row.has_state and row.first in self._counts:
            self._counts[row.first].keeps = True

    def events_of_run(self) -> Iterator[Found]:
        for counts in self._counts.values():
            if counts.keeps and counts.fresh >= _MIN_STEPS:
                made = RecreatedOptimizer(what="optimizer", name=counts.first.name)
                steps = counts.fresh + counts.old if counts.old else 0
                latest = {"count": counts.fresh, "steps": steps}
                yield Found(made, counts.first.place, latest=latest)
