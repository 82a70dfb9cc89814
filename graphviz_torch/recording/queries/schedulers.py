"""Compare the steps of learning rate schedulers with those of their optimizers.

These problems are found: a scheduler that steps more often than its optimizer, or past the end of
its schedule; one that never steps, or whose optimizer never does; one that starts again although
its optimizer has loaded a state; and one that continues although its optimizer starts without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from types import CodeType

from ...findings.rules.meaning.schedulers import (
    ContinuedSchedule,
    NeverSteppedScheduler,
    RestartedSchedule,
    SchedulerPastEnd,
    SchedulerStepsTooOften,
    UnusedScheduler,
)
from ...graph.immutable import mutable
from ..program.events import MethodCall, UserLine, VariableLine
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
