"""Find a program's learning rate schedulers, and compare their steps with their optimizers'."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    LRScheduler,
    SequentialLR,
)

from ...findings.rules.meaning.schedulers import (
    NeverSteppedScheduler,
    RestartedSchedule,
    SchedulerPastEnd,
    SchedulerStepsTooOften,
    UnusedScheduler,
)
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ...internals.tensors.pytree import own_attributes
from ..program import Program
from ..program.code import codes, find_method_call, find_variable, owners_of_method
from ..program.events import Events

_MAX_ITEMS = 16  # number of items of a list that are searched


def schedulers(values: Mapping[str, Any]) -> Iterator[tuple[str, LRScheduler]]:
    """Yield the schedulers among variables, each with its name.

    Lists, tuples and attributes of objects are searched, too. Examples of names are "scheduler",
    "schedulers[0]" and "trainer.scheduler".
    """
    for name, value in values.items():
        if issubclass(type(value), LRScheduler):
            yield name, value
        elif type(value) in (list, tuple):
            items = ((f"{name}[{i}]", item) for i, item in enumerate(value[:_MAX_ITEMS]))
            yield from ((n, item) for n, item in items if issubclass(type(item), LRScheduler))
        elif not issubclass(type(value), (torch.nn.Module, ModuleType, type)):
            for key, part in own_attributes(value).items():
                if issubclass(type(part), LRScheduler):
                    yield f"{name}.{key}", part


_MIN_STEPS = 3  # fewer steps may be intended, and are not reported
# A scheduler that has not stepped is reported if its optimizer has stepped this often.
_MIN_UNSCHEDULED_STEPS = 5


@mutable
class Schedule:
    """A scheduler that was found in the program."""

    scheduler: weakref.ref[LRScheduler]
    name: str
    started: int  # number of the scheduler's steps before it was found
    last: int = 0  # `last_epoch` at the optimizer's last step

    @classmethod
    def create(cls, scheduler: LRScheduler, name: str) -> Schedule:
        """Create the record of a live scheduler."""
        return cls(weakref.ref(scheduler), name, _count(scheduler))


def note_schedule_problems(
    events: Events,
    program: Program,
    schedule: Schedule,
    optimizer: str,
    optimizer_steps: int,
    scaled: bool,
    around: Sequence[CodeType],
) -> None:
    """Report a scheduler that steps more often than its optimizer, or past its schedule's end.

    Args:
        events: receives the events.
        program: the recorded program, which knows the lines that call `step`.
        schedule: the scheduler.
        optimizer: name of the scheduler's optimizer.
        optimizer_steps: number of steps of the optimizer.
        scaled: True if a GradScaler may have skipped steps.
        around: code objects around the optimizer's step.
    """
    scheduler = schedule.scheduler()
    if scheduler is None:
        return
    steps = _count(scheduler) - schedule.started
    place = step_of_scheduler(program, schedule, around)
    if not scaled and optimizer_steps > 1 and 2 * steps >= 3 * optimizer_steps:
        pace = SchedulerStepsTooOften(scheduler=schedule.name, optimizer=optimizer)
        events.note(pace, place, count=steps, steps=optimizer_steps)
    for each in _active(scheduler):
        last, name = each.last_epoch, schedule.name
        if type(each) is CosineAnnealingLR and last - steps <= each.T_max < last:
            name = name if each is scheduler else f"CosineAnnealingLR of {name}"
            past = SchedulerPastEnd(scheduler=name, optimizer=optimizer)
            events.note(past, place, count=last, end=int(each.T_max))


def step_of_scheduler(
    program: Program, schedule: Schedule, around: Sequence[CodeType]
) -> CodePosition | None:
    """Return the position of the only call of a scheduler's `step`; None if it is not known.

    Args:
        program: the recorded program.
        schedule: the scheduler.
        around: code objects around the optimizer's step, which are searched as well.
    """
    name = schedule.name.rpartition(".")[2]
    return find_method_call(codes(program, more=around), "step", name)


def note_restarted_schedules(
    events: Events,
    program: Program,
    schedules: Sequence[Schedule],
    optimizer: str,
    around: Sequence[CodeType],
) -> None:
    """Report schedulers at step 0, although their optimizer has loaded a checkpoint's state.

    Args:
        events: receives the events.
        program: the recorded program, which knows the lines that assign the schedulers.
        schedules: the schedulers of the optimizer.
        optimizer: name of the optimizer.
        around: code objects around the optimizer's step.
    """
    for schedule in schedules:
        scheduler = schedule.scheduler()
        if scheduler is None or scheduler.last_epoch != 0:
            continue
        every = list(codes(program, more=around))
        place = find_method_call(every, "load_state_dict", optimizer)
        place = place or find_method_call(every, "load_state_dict")
        found = RestartedSchedule(scheduler=schedule.name, optimizer=optimizer)
        assigned = find_variable(every, schedule.name.rpartition(".")[2])
        events.note(found, place, assigned=program.line()(assigned))


def note_schedulers_without_steps(
    events: Events,
    program: Program,
    schedules: Sequence[Schedule],
    optimizer: str,
    optimizer_steps: int,
    place: CodePosition | None,
    around: Sequence[CodeType],
) -> None:
    """Report the scheduler of an optimizer at the end of a program that never called its `step`.

    Args:
        events: receives the events.
        program: the recorded program, which knows the line that assigns the scheduler.
        schedules: the schedulers of the optimizer.
        optimizer: name of the optimizer.
        optimizer_steps: number of steps of the optimizer.
        place: position of the optimizer's step.
        around: code objects around the optimizer's step.
    """
    if optimizer_steps < _MIN_UNSCHEDULED_STEPS or not schedules:
        return
    every = list(codes(program, more=around))
    for schedule in schedules:
        scheduler = schedule.scheduler()
        last = schedule.last if scheduler is None else scheduler.last_epoch
        if last > 0:
            return  # one of several schedulers may be meant for a later part of the training
        # A scheduler that was freed may have stepped after the last step of the optimizer.
        if scheduler is None and owners_of_method(every, "step") - {optimizer, "scaler"}:
            return
    name = schedules[0].name
    assigned = find_variable(every, name.rpartition(".")[2])
    found = NeverSteppedScheduler(scheduler=name, optimizer=optimizer)
    events.note(found, place, steps=optimizer_steps, assigned=program.line()(assigned))


def note_unused_schedulers(
    events: Events,
    program: Program,
    schedules: Iterable[Schedule],
    optimizers: Sequence[Optimizer | None],
) -> None:
    """Report schedulers that step although their optimizer never does.

    Args:
        events: receives the events.
        program: the recorded program, which knows the lines that call `step`.
        schedules: the schedulers to check.
        optimizers: the optimizers that step.
    """
    stepped = {id(group) for each in optimizers if each for group in each.param_groups}
    for schedule in schedules:
        scheduler = schedule.scheduler()
        if scheduler is None or any(scheduler.optimizer is each for each in optimizers):
            continue
        # A wrapper of an optimizer has the same parameter groups as the optimizer.
        if any(id(group) in stepped for group in scheduler.optimizer.param_groups):
            continue
        steps = _count(scheduler) - schedule.started
        if steps >= _MIN_STEPS:
            place = find_method_call(codes(program), "step", schedule.name.rpartition(".")[2])
            events.note(UnusedScheduler(scheduler=schedule.name), place, count=steps)


def _active(scheduler: LRScheduler) -> list[LRScheduler]:
    """Return the schedulers that set the learning rate now.

    For a SequentialLR or ChainedScheduler these are inner schedulers. For any other scheduler it is
    the scheduler itself.
    """
    parts: list[LRScheduler] = getattr(scheduler, "_schedulers", [])  # a private attribute (2.13)
    if type(scheduler) is SequentialLR:
        at = bisect_right(scheduler._milestones, scheduler.last_epoch)
        return [each for part in parts[at : at + 1] for each in _active(part)]
    if type(scheduler) is ChainedScheduler:
        return [each for part in parts for each in _active(part)]
    return [scheduler]


def _count(scheduler: LRScheduler) -> int:
    """Return how often a scheduler has stepped, from a private attribute (PyTorch 2.13)."""
    return int(getattr(scheduler, "_step_count", 0))
