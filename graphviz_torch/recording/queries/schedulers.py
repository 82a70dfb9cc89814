"""Find learning rates without the intended effect: of schedulers, and those set by hand.

These problems are found: a scheduler that steps more often than its optimizer, or past the end of
its schedule; one that never steps, or whose optimizer never does; one that starts again although
its optimizer has loaded a state; and one that continues although its optimizer starts without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import pairwise
from types import CodeType
from typing import Any

from ...findings.rules.meaning.schedulers import (
    ContinuedSchedule,
    NeverSteppedScheduler,
    RateSetByHand,
    RestartedSchedule,
    SchedulerPastEnd,
    SchedulerStepsTooOften,
    UnusedScheduler,
)
from ...graph.immutable import mutable
from ..program.events import Assignment, MethodCall, UserLine, VariableLine
from ..program.log import Found, Query
from ..program.rows import (
    BackwardRow,
    OptimizerRow,
    ProgramEndRow,
    SchedulerRow,
    StepEndRow,
    StepRow,
    TrainingStepRow,
)

_MIN_CONTINUED = 2  # a scheduler may step once before its optimizer, by mistake
_MIN_STEPS = 3  # fewer steps may be intended, and are not reported
# A scheduler that has not stepped is reported if its optimizer has stepped this often.
_MIN_UNSCHEDULED_STEPS = 5


@mutable
class _ScheduledOptimizer:
    """An optimizer, and its schedulers."""

    row: OptimizerRow
    first: StepRow | None = None  # the first step
    steps: int = 0
    schedulers: dict[int, SchedulerRow] = field(default_factory=dict)

    @property
    def around(self) -> tuple[CodeType, ...]:
        """Return the code of the user's frames around the first step."""
        return self.row.around


class Schedulers(Query):
    """Find schedulers that do not step together with their optimizers."""

    def __init__(self) -> None:
        self._optimizers: dict[int, _ScheduledOptimizer] = {}
        self._is_scaled = False  # True if a GradScaler may have skipped steps

    def on_backward(self, row: BackwardRow) -> None:
        self._is_scaled = self._is_scaled or row.is_scaled

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._is_scaled = False

    def on_optimizer(self, row: OptimizerRow) -> None:
        self._optimizers[row.optimizer] = _ScheduledOptimizer(row)

    def on_step(self, row: StepRow) -> Iterator[Found]:
        known = self._optimizers.get(row.optimizer)
        if known is not None:
            if known.first is None:
                known.first = row
                yield from _restarts(known, row)
            known.steps = row.steps

    def on_step_end(self, row: StepEndRow) -> Iterator[Found]:
        for known in self._optimizers.values():
            if (
                row.has_state
                and known.steps == 1
                and known.first
                and known.first.first == row.first
            ):
                yield from _continues(known, known.first)

    def on_scheduler(self, row: SchedulerRow) -> Iterator[Found]:
        known = self._optimizers.get(row.optimizer)
        if row.optimizer == 0 and row.steps >= _MIN_STEPS:
            place = MethodCall("step", row.variable)
            yield Found(UnusedScheduler(scheduler=row.name), place, latest={"count": row.steps})
        elif known is not None:
            known.schedulers[row.scheduler] = row
            if known.first is not None and not row.is_unknown:
                yield from self._compare(row, known, known.first.name)

    def on_program_end(self, row: ProgramEndRow) -> Iterator[Found]:
        for known in self._optimizers.values():
            yield from _schedulers_without_steps(known)

    def _compare(self, row: SchedulerRow, known: _ScheduledOptimizer, name: str) -> Iterator[Found]:
        """Compare the steps of a scheduler with those of its optimizer, and with its end."""
        place = MethodCall("step", row.variable, known.around)
        if not self._is_scaled and known.steps > 1 and 2 * row.steps >= 3 * known.steps:
            pace = SchedulerStepsTooOften(scheduler=row.name, optimizer=name)
            yield Found(pace, place, latest={"count": row.steps, "steps": known.steps})
        for end, last, is_inner in row.cosines:
            if last - row.steps <= end < last:
                label = f"CosineAnnealingLR of {row.name}" if is_inner else row.name
                past = SchedulerPastEnd(scheduler=label, optimizer=name)
                yield Found(past, place, latest={"count": last, "end": end})


def _restarts(known: _ScheduledOptimizer, step: StepRow) -> Iterator[Found]:
    """Yield the schedulers at step 0 of an optimizer that has loaded a checkpoint's state."""
    if not (known.row.is_new and step.has_state):
        return
    place = MethodCall("load_state_dict", step.name, known.around, or_any=True)
    for row in known.schedulers.values():
        if row.last == 0:
            found = RestartedSchedule(scheduler=row.name, optimizer=step.name)
            assigned = VariableLine(row.variable, known.around)
            yield Found(found, place, latest={"assigned": assigned})


def _continues(known: _ScheduledOptimizer, step: StepRow) -> Iterator[Found]:
    """Yield the schedulers that had stepped before an optimizer that began without its state."""
    if not known.row.is_new or step.has_state:
        return
    for row in known.schedulers.values():
        if row.last >= _MIN_CONTINUED:
            found = ContinuedSchedule(scheduler=row.name, optimizer=step.name)
            place = MethodCall("load_state_dict", row.variable, or_any=True)
            yield Found(found, place, latest={"last": row.last, "stepped": UserLine(step.place)})


def _schedulers_without_steps(known: _ScheduledOptimizer) -> Iterator[Found]:
    """Yield the first scheduler of an optimizer, if none has stepped when the program ends."""
    rows, step = list(known.schedulers.values()), known.first
    if step is None or known.steps < _MIN_UNSCHEDULED_STEPS or not rows:
        return
    # One of several schedulers may be meant for a later part of the training.
    if any(row.last > 0 or row.is_unknown for row in rows):
        return
    found = NeverSteppedScheduler(scheduler=rows[0].name, optimizer=step.name)
    assigned = VariableLine(rows[0].variable, known.around)
    yield Found(found, step.place, latest={"steps": known.steps, "assigned": assigned})


_MAX_OPTIMIZERS = 64
_MAX_STEPS = 4096  # number of steps of an optimizer whose rates are kept
_MIN_VALUES = 3  # a rate is set in each step if it has had this number of values
_MIN_FALLS, _MIN_RISES = 4, 3  # numbers of steps in which the rate falls and rises again
_MIN_PERIOD, _MIN_PERIODS = 3, 3
_SMALL_RATE = 0.01  # a schedule has ended if the rate is below this fraction of its maximum
_VANISHED = 1e-9  # a step with this fraction of the largest rate changes nothing
_MIN_VANISHED = 10  # number of such steps that are reported


@mutable
class _RateHistory:
    """The learning rates of an optimizer: of its parameter groups, and those that no step reads."""

    row: OptimizerRow
    last: StepRow | None = None
    rates: list[tuple[float | None, ...]] = field(default_factory=list)  # of the groups, by step
    vanished: int = 0  # number of last steps with a vanished rate
    largest: float = 0.0
    defaults: list[float] = field(default_factory=list)  # distinct values of defaults["lr"]
    is_scheduled: bool = False


class HandSetRates(Query):
    """Find learning rates that the program sets by hand without the intended effect."""

    def __init__(self) -> None:
        self._known: dict[int, _RateHistory] = {}  # by optimizer

    def on_optimizer(self, row: OptimizerRow) -> None:
        if len(self._known) < _MAX_OPTIMIZERS:
            self._known[row.optimizer] = _RateHistory(row)

    def on_step(self, row: StepRow) -> None:
        known = self._known.get(row.optimizer)
        if known is None:
            return
        known.last = row
        known.is_scheduled = known.is_scheduled or row.is_scheduled
        rates = tuple([group.rate for group in row.groups if group.size])
        if len(known.rates) < _MAX_STEPS:
            known.rates.append(rates)
        numbers = [rate for rate in rates if rate is not None]
        largest = max(numbers, default=0.0)
        known.largest = max(known.largest, largest)
        has_vanished = 0 < largest < _VANISHED * known.largest
        known.vanished = known.vanished + 1 if has_vanished else 0
        if row.default_rate is not None and known.defaults[-1:] != [row.default_rate]:
            known.defaults = [*known.defaults[-_MIN_VALUES:], row.default_rate]

    def events_of_run(self) -> Iterator[Found]:
        for known in self._known.values():
            for event, numbers in _problems(known):
                place = None if known.last is None else known.last.place
                assigned = Assignment("lr", known.row.around)
                yield Found(event, place, latest={"assigned": assigned, **numbers})


def _problems(known: _RateHistory) -> Iterator[tuple[RateSetByHand, dict[str, Any]]]:
    """Yield an event for each problem, with the numbers that differ between occurrences."""
    last = known.last
    if last is None or not known.rates or None in known.rates[0]:
        return
    name, steps = last.name, last.steps
    if known.vanished >= _MIN_VANISHED:
        event = RateSetByHand(what="vanished", optimizer=name)
        yield event, {"rate": known.largest, "count": known.vanished, "steps": steps}
    groups = [[rates[i] for rates in known.rates] for i in range(len(known.rates[0]))]
    changing = [len({*rates}) > 1 for rates in groups]
    if known.is_scheduled or not all(len(rates) == len(groups) for rates in known.rates):
        return
    now = groups[0][-1]
    if not any(changing):
        if last.attribute_rate not in (None, now):
            event = RateSetByHand(what="attribute", optimizer=name)
            yield event, {"rate": last.attribute_rate, "steps": steps}
        elif len(known.defaults) >= _MIN_VALUES:
            event = RateSetByHand(what="defaults", optimizer=name)
            yield event, {"rate": last.default_rate, "steps": steps}
        return
    first = [rate for rate in groups[0] if rate is not None]
    others = {rates[0] for rates in groups[1:]}
    is_only = changing[0] and others and not any(changing[1:]) and len({*first}) >= _MIN_VALUES
    if any(group.has_own_options for group in last.groups):
        is_only = False  # such as "fix_lr", by which the program chooses the groups
    other = next(iter(others), None) or 0.0
    if is_only and len(others) == 1 and any(math.isclose(rate, other) for rate in first):
        event = RateSetByHand(what="group", optimizer=name, groups=len(groups))
        yield event, {"steps": steps}
    end, period = _end_of_fall(first), _period_of_rises(first)
    if end is not None:
        yield RateSetByHand(what="rise", optimizer=name), {"count": end + 1, "steps": steps}
    elif period is not None:
        yield RateSetByHand(what="restart", optimizer=name), {"count": period, "steps": steps}


def _end_of_fall(rates: Sequence[float]) -> int | None:
    """Return the index of the smallest rate, if the rates fall to it smoothly and rise again."""
    end = min(range(len(rates)), key=rates.__getitem__)
    before, after = rates[max(0, end - _MIN_FALLS) : end + 1], rates[end : end + _MIN_RISES + 1]
    falls = len(before) > _MIN_FALLS and all(a > b for a, b in pairwise(before))
    rises = len(after) > _MIN_RISES and all(a < b for a, b in pairwise(after))
    if not (falls and rises and abs(rates[end]) < _SMALL_RATE * max(rates)):
        return None
    is_smooth = after[1] - after[0] < 4 * (before[-3] - before[-1])
    return end if is_smooth else None


def _period_of_rises(rates: Sequence[float]) -> int | None:
    """Return the number of steps after which a rate that only rises begins again."""
    drops = [i for i, (a, b) in enumerate(pairwise(rates), 1) if b < a]
    period = drops[0] if drops else 0
    if period < _MIN_PERIOD or len(rates) < _MIN_PERIODS * period:
        return None
    repeats = all(a == b for a, b in zip(rates, rates[period:], strict=False))
    return period if repeats else None
