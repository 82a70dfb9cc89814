"""Report steps of optimizers, schedulers and GradScalers that do not have the intended effect.

These problems are reported:

    a scheduler steps before its optimizer, more often than its optimizer, or past the end of its
        schedule, or its optimizer never steps
    the program creates a new optimizer for each step or epoch, or a new scheduler or scaler for
        each step
    an optimizer steps with a learning rate of 0 or below, or without gradients
    two optimizers share a parameter
    a scheduler never steps, or starts again although its optimizer has loaded a state
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType, FrameType

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...findings.rules.meaning.optimizers import (
    RecreatedKind,
    RecreatedOptimizer,
    SharedParameters,
    StepWithoutGradients,
    ZeroLearningRate,
)
from ...findings.rules.training import EarlySchedulerStep
from ...graph import Graph
from ...internals.frames import CodePosition, local_variables, user_frame, user_frames
from ...internals.grad_scaler import stepping_scaler
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.tensors.weak import Ref
from ..backward import Backward
from ..events.code import codes, find_method_call, is_made_by_call
from ..listener import BackwardEnded, Listener, Resumed
from ..optimizer_log import OptimizerRecord
from ..program import Program
from .groups import note_group_problems
from .schedulers import (
    Schedule,
    note_restarted_schedules,
    note_schedule_problems,
    note_schedulers_without_steps,
    note_unused_schedulers,
    schedulers,
    step_of_scheduler,
)

_MAX_OPTIMIZERS = 64
_MAX_PARAMETERS = 10_000  # number of parameters whose optimizer is remembered
_MIN_STEPS = 3  # fewer steps may be intended, and are not reported
_CHECKED_STEPS = 4  # schedulers and scalers are searched for at this number of first steps


@dataclass(slots=True)
class _Rates:
    """Numbers of steps in which a parameter group had no positive learning rate."""

    idle: int = 0  # number of steps with learning rate 0
    last: int = 0  # number of latest consecutive steps with learning rate 0
    negative: int = 0  # number of steps with a learning rate below 0


@dataclass(slots=True)
class _Optimizer:
    """An optimizer that steps, with the data that the checks need."""

    record: OptimizerRecord
    name: str
    place: CodePosition | None
    schedules: list[Schedule]
    around: list[CodeType]  # code objects of the user's frames around the first step
    sizes: list[int] = field(default_factory=list)  # number of parameters of each group
    empty: int = 0  # number of steps without any gradient
    rates: list[_Rates] = field(default_factory=list)  # by parameter group
    # For each of the first steps: variable's name -> the scaler that called the step, and
    # variable's name -> a scheduler of the optimizer
    met: dict[RecreatedKind, list[dict[str, weakref.ref[object]]]] = field(default_factory=dict)


@dataclass(slots=True)
class _StateCounts:
    """Numbers of steps with and without optimizer state (such as Adam's averages).

    All optimizers with the same first parameter are counted together.
    """

    name: str
    place: CodePosition | None
    first: Ref | None
    fresh: int = 0  # number of steps that began without optimizer state
    old: int = 0  # number of steps that began with optimizer state
    keeps: bool = False  # True if the optimizer has state after a step


class OptimizerCalls(Listener):
    """Listener that reports optimizer, scheduler and scaler steps without the intended effect."""

    needs = ("every_call",)
    sees_later_steps = True

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # True if all optimizer steps of the program were observed.
        self._complete = program.frame is None
        self._optimizers: dict[OptimizerRecord, _Optimizer] = {}
        # Schedulers of other optimizers, which may not have stepped, by id() of the scheduler.
        self._schedules: dict[int, Schedule] = {}
        # id() of a parameter -> the optimizer that updates the parameter, and its name
        self._owners: dict[int, tuple[weakref.ref[Optimizer], str]] = {}
        self._moments: dict[int, _StateCounts] = {}  # by id() of an optimizer's first parameter
        self._has_run = False  # True once a backward ran
        # id() of leaves that a backward reached after the last step of the leaf's optimizer.
        self._reached: set[int] = set()

    def on_resume(self, event: Resumed) -> None:
        self._complete = False

    def on_program_end(self, event: None) -> None:
        """Report schedulers that have never stepped."""
        for known in self._optimizers.values():
            note_schedulers_without_steps(
                self.events,
                self.program,
                known.schedules,
                known.name,
                known.record.steps,
                known.place,
                known.around,
            )

    def on_backward_end(self, event: BackwardEnded) -> None:
        if event.backward.call.accumulates:
            self._has_run = True
            self._reached |= event.backward.reached
            if len(self._reached) > _MAX_PARAMETERS:  # keep only parameters, not inputs
                self._reached &= self.program.table.every()

    def on_optimizer_step_start(self, event: Stepping) -> None:
        optimizer = event.optimizer
        record = self.program.steps.log.get(optimizer)
        known = None if record is None else self._optimizers.get(record)
        if record is None or (known is None and len(self._optimizers) >= _MAX_OPTIMIZERS):
            return
        if known is None:
            known = self._optimizers[record] = self._met(record, optimizer, event)
            if self._complete and record.had_state and record.steps == 1:
                note_restarted_schedules(
                    self.events, self.program, known.schedules, known.name, known.around
                )
        groups = optimizer.param_groups
        known.sizes = [len(group["params"]) for group in groups]
        for schedule in known.schedules:
            scheduler = schedule.scheduler()
            schedule.last = schedule.last if scheduler is None else scheduler.last_epoch
        if record.steps <= _CHECKED_STEPS:
            self._find_scaler_and_schedulers(known, optimizer, event.frame)
        if self._has_run and len(event.args) < 2:  # no closure that computes the gradients later
            held = {id(p): p.grad is not None for g in groups for p in g["params"]}
            known.empty += not any(held.values()) and self._reached.isdisjoint(held)
            self._reached.difference_update(held)
        while len(known.rates) < len(groups):
            known.rates.append(_Rates())
        for count, rate in zip(known.rates, record.rates, strict=False):
            if rate is None or rate > 0:
                count.last = 0
            else:
                count.idle += rate == 0
                count.last = count.last + 1 if rate == 0 else 0
                count.negative += rate < 0
        moments = self._moments_of(optimizer, known)
        moments.fresh += not record.had_state
        moments.old += record.had_state

    def on_optimizer_step_end(self, event: Stepped) -> None:
        record = self.program.steps.log.get(event.optimizer)
        if record is not None and record in self._optimizers:
            known = self._optimizers[record]
            self._moments_of(event.optimizer, known).keeps |= record.keeps_state

    def on_step_end(self, event: None) -> None:
        while len(self._moments) > _MAX_OPTIMIZERS:
            del self._moments[next(iter(self._moments))]

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        scaled = any(backward.call.loss_scale is not None for backward in backwards)
        for known in self._optimizers.values():
            for schedule in known.schedules:
                note_schedule_problems(
                    self.events,
                    self.program,
                    schedule,
                    known.name,
                    known.record.steps,
                    scaled,
                    known.around,
                )
            self._check_rates(known)
            self._check_gradients(known)
            self._check_recreated(known)
        optimizers = [record.ref() for record in self._optimizers]
        note_unused_schedulers(self.events, self.program, self._schedules.values(), optimizers)
        self._check_lost_state()

    def _moments_of(self, optimizer: Optimizer, known: _Optimizer) -> _StateCounts:
        first = next((p for group in optimizer.param_groups for p in group["params"]), None)
        found = self._moments.get(id(first))
        if found is None or (found.first is not None and found.first() is not first):
            ref = None if first is None else Ref(first)
            found = self._moments[id(first)] = _StateCounts(known.name, known.place, ref)
        return found

    def _met(self, record: OptimizerRecord, optimizer: Optimizer, event: Stepping) -> _Optimizer:
        """Return a record for an optimizer at its first step, and check its parameter groups."""
        variables = list(self._variables(event.frame))
        name = self.program.optimizer_name(optimizer, user_frame(event.frame))
        place = self.program.place(event.frame)
        note_group_problems(self.events, self.program, optimizer, name, place)
        self._check_shared_parameters(optimizer, name, place)
        found: dict[int, Schedule] = {}
        for values in variables:
            for label, scheduler in schedulers(values):
                own = scheduler.optimizer is optimizer
                if own or len(self._schedules) < _MAX_OPTIMIZERS:
                    schedule = Schedule.create(scheduler, label)
                    (found if own else self._schedules).setdefault(id(scheduler), schedule)
        around = [frame.f_code for frame in user_frames(user_frame(event.frame))]
        return _Optimizer(record, name, place, list(found.values()), around)

    def _variables(self, frame: FrameType) -> Iterator[dict[str, object]]:
        """Yield the variables of the user's frames around a step, innermost frame first."""
        for each in user_frames(user_frame(frame), self.program.frame):
            yield local_variables(each)

    def _find_scaler_and_schedulers(
        self, known: _Optimizer, optimizer: Optimizer, frame: FrameType
    ) -> None:
        """Add the scaler that calls the step, and the optimizer's schedulers, to `known.met`."""
        scaler = stepping_scaler(frame)
        if scaler is None and not known.schedules:
            return
        variables = list(self._variables(frame))
        if scaler is not None:
            names = (n for values in variables for n, value in values.items() if value is scaler)
            found = {next(names, type(scaler).__name__): weakref.ref[object](scaler)}
            known.met.setdefault("scaler", []).append(found)
        if known.schedules:
            found = {
                name: weakref.ref[object](each)
                for values in reversed(variables)
                for name, each in schedulers(values)
                if each.optimizer is optimizer
            }
            known.met.setdefault("scheduler", []).append(found)

    def _check_recreated(self, known: _Optimizer) -> None:
        """Report a scheduler or scaler that was a new object at each of the first steps."""
        for what, looks in known.met.items():
            for name in looks[0]:
                refs = [look[name] for look in looks if name in look]
                # weakref.ref() returns the same reference for the same object.
                recreated = all(one is not other for one, other in pairwise(refs))
                if len(refs) == len(looks) >= _MIN_STEPS and recreated:
                    made = RecreatedOptimizer(what=what, name=name)
                    self.events.note(made, known.place, count=len(refs))

    def _check_rates(self, known: _Optimizer) -> None:
        steps, rates, sizes = known.record.steps, known.rates, known.sizes
        held = [count for count, size in zip(rates, sizes, strict=False) if size]
        if any(count.negative for count in held):
            number = max(count.negative for count in held)
            idle = ZeroLearningRate(what="negative", optimizer=known.name)
            self.events.note(idle, known.place, count=number, steps=steps)
        still = [count.idle == steps for count in held]
        if steps >= _MIN_STEPS and held and all(still):
            idle = ZeroLearningRate(what="all", optimizer=known.name)
            self.events.note(idle, known.place, count=steps, steps=steps)
        elif held and min(count.last for count in held) >= _MIN_STEPS:
            number = min(count.last for count in held)
            name, line = self._scheduler_of(known)
            idle = ZeroLearningRate(what="end", optimizer=known.name, scheduler=name)
            self.events.note(idle, known.place, count=number, steps=steps, scheduled=line)
        else:
            for i, (count, size) in enumerate(zip(rates, sizes, strict=False)):
                if size and steps >= _MIN_STEPS and count.idle == steps:
                    idle = ZeroLearningRate(
                        what="group", optimizer=known.name, group=i, groups=len(sizes)
                    )
                    self.events.note(idle, known.place, count=steps, steps=steps)

    def _scheduler_of(self, known: _Optimizer) -> tuple[str, str]:
        """Return the optimizer's only scheduler, and the line of its step; "" if not known."""
        if len(known.schedules) != 1:
            return "", ""
        schedule = known.schedules[0]
        place = step_of_scheduler(self.program, schedule, known.around)
        return schedule.name, self.program.line()(place)

    def _check_gradients(self, known: _Optimizer) -> None:
        """Report an optimizer if no parameter had a gradient at any of its steps."""
        optimizer, steps = known.record.ref(), known.record.steps
        if optimizer is None or steps < 2 or known.empty < steps:
            return
        own = self.program.table.every()
        learning = [p for p in parameters_of(optimizer) if p.requires_grad and id(p) in own]
        if learning:
            empty = StepWithoutGradients(optimizer=known.name)
            keys = [id(p) for p in learning]
            self.events.note(empty, known.place, leaves=keys, count=steps)

    def _check_shared_parameters(
        self, optimizer: Optimizer, name: str, place: CodePosition | None
    ) -> None:
        """Report parameters that another optimizer updates, too.

        Args:
            optimizer: the optimizer.
            name: the user's name for the optimizer.
            place: position of the optimizer's step.
        """
        both: dict[str, list[int]] = {}
        for key in map(id, parameters_of(optimizer)):
            known = self._owners.get(key)
            other = None if known is None else known[0]()
            if known is not None and other is not None and other is not optimizer:
                if not any(a is b for a in other.param_groups for b in optimizer.param_groups):
                    both.setdefault(known[1], []).append(key)
            elif len(self._owners) < _MAX_PARAMETERS:
                self._owners[key] = weakref.ref(optimizer), name
        for label, keys in both.items():
            shared = SharedParameters(optimizer=name, other=label)
            self.events.note(shared, place, leaves=keys, count=len(keys))

    def _check_lost_state(self) -> None:
        """Report an optimizer that is re-created repeatedly, and so loses its state (momentum)."""
        for moments in self._moments.values():
            if moments.keeps and moments.fresh >= _MIN_STEPS:
                made = RecreatedOptimizer(what="optimizer", name=moments.name)
                steps = moments.fresh + moments.old
                steps = steps if moments.old else 0
                self.events.note(made, moments.place, count=moments.fresh, steps=steps)


class EarlySchedulers(Listener):
    """Listener that reports a scheduler that stepped before its optimizer.

    The variables of the frame that enters the recording are searched for schedulers, including
    lists and objects among them. A function that creates an optimizer during the recording is
    searched, too. Nothing is reported for a program with a GradScaler, because the scaler may have
    skipped earlier steps of the optimizer.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        values = {} if program.frame is None else local_variables(program.frame)
        self._scaled = False  # True once a loss was scaled
        self._names = frozenset(values)
        self._met: set[int] = set()  # id() of optimizers that have stepped
        self._waiting = [
            (name, weakref.ref(value))
            for name, value in schedulers(values)
            if not getattr(value.optimizer, "_opt_called", False)  # a private attribute (2.13)
        ]

    def on_backward_end(self, event: BackwardEnded) -> None:
        self._scaled = self._scaled or event.backward.call.loss_scale is not None

    def on_optimizer_step_start(self, event: Stepping) -> None:
        """Check the schedulers at the first step of an optimizer."""
        optimizer, program, frame = event.optimizer, self.program, user_frame(event.frame)
        if id(optimizer) in self._met or not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            return  # the optimizer has stepped before, or has no scheduler (private, 2.13)
        self._met.add(id(optimizer))
        frames = user_frames(frame, program.frame)
        known = [(name, scheduler()) for name, scheduler in self._waiting]
        known += [each for one in frames for each in self._new_schedulers(one, optimizer)]
        for name, scheduler in known:
            if scheduler is None or scheduler.optimizer is not optimizer or self._scaled:
                continue
            if getattr(scheduler, "_step_count", 0) > 1:  # a private attribute (2.13)
                own, variable = [one.f_code for one in frames], name.rpartition(".")[2]
                place = find_method_call(own, "step", variable)
                place = place or find_method_call(codes(program, more=own), "step", variable)
                label = program.optimizer_name(optimizer, frame)
                self.events.note(EarlySchedulerStep(scheduler=name, optimizer=label), place)
                return

    def _new_schedulers(
        self, frame: FrameType, optimizer: Optimizer
    ) -> Iterator[tuple[str, LRScheduler]]:
        """Yield a frame's schedulers, if its code created the optimizer during the recording."""
        values = local_variables(frame)
        own = [name for name, value in values.items() if value is optimizer]
        new = frame is not self.program.frame or self._names.isdisjoint(own)
        if new and any(is_made_by_call(frame, name) for name in own):
            yield from ((n, v) for n, v in values.items() if issubclass(type(v), LRScheduler))
