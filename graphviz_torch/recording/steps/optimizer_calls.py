"""Append rows of optimizers and schedulers, and report those without the intended effect.

These problems are reported here, others by queries:

    a scheduler steps before its optimizer
    the program creates a new scheduler or scaler for each step
    two optimizers share a parameter
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import pairwise
from types import CodeType, FrameType

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...findings.rules.meaning.optimizers import RecreatedKind, RecreatedOptimizer
from ...findings.rules.meaning.parameter_groups import SharedParameters
from ...findings.rules.training import EarlySchedulerStep
from ...graph import Graph
from ...graph.immutable import mutable
from ...internals.frames import CodePosition, local_variables, user_frame, user_frames
from ...internals.grad_scaler import stepping_scaler
from ...internals.hooks.optimizers import Stepping, parameters_of
from ..backward import Backward
from ..listener import BackwardEnded, Listener, Resumed
from ..optimizer_log import OptimizerRecord
from ..program import Program
from ..program.code import codes, find_method_call, is_made_by_call, owners_of_method
from ..program.rows import OptimizerRow, ProgramEndRow, SchedulerRow
from .schedulers import Schedule, schedulers

_MAX_OPTIMIZERS = 64
_MAX_PARAMETERS = 10_000  # number of parameters whose optimizer is remembered
_MIN_STEPS = 3  # fewer steps may be intended, and are not reported
_CHECKED_STEPS = 4  # schedulers and scalers are searched for at this number of first steps


@mutable
class _Optimizer:
    """An optimizer that steps, with the data that the checks need."""

    record: OptimizerRecord
    name: str
    place: CodePosition | None
    schedules: list[Schedule]
    around: list[CodeType]  # code objects of the user's frames around the first step
    # For each of the first steps: variable's name -> the scaler that called the step, and
    # variable's name -> a scheduler of the optimizer
    met: dict[RecreatedKind, list[dict[str, weakref.ref[object]]]] = field(default_factory=dict)


class OptimizerCalls(Listener):
    """Listener that appends rows of new optimizers, and of schedulers when a graph is built.

    It reports schedulers, scalers and optimizers without the intended effect.
    """

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

    def on_resume(self, event: Resumed) -> None:
        self._complete = False

    def on_program_end(self, event: None) -> None:
        """Append the last rows of the schedulers, also of those that were freed."""
        for known in self._optimizers.values():
            number = known.record.number
            for schedule in known.schedules:
                row = schedule.row(number)
                if row is None:
                    others = owners_of_method(codes(self.program, more=known.around), "step")
                    row = SchedulerRow(schedule.number, schedule.name, number, last=schedule.last)
                    row = row._replace(is_unknown=bool(others - {known.name, "scaler"}))
                self.program.log.append(row)
        self.program.log.append(ProgramEndRow())

    def on_optimizer_step_start(self, event: Stepping) -> None:
        optimizer = event.optimizer
        record = self.program.steps.log.get(optimizer)
        known = None if record is None else self._optimizers.get(record)
        if record is None or (known is None and len(self._optimizers) >= _MAX_OPTIMIZERS):
            return
        if known is None:
            known = self._optimizers[record] = self._met(record, optimizer, event)
        for schedule in known.schedules:
            scheduler = schedule.scheduler()
            schedule.last = schedule.last if scheduler is None else scheduler.last_epoch
        if record.steps <= _CHECKED_STEPS:
            self._find_scaler_and_schedulers(known, optimizer, event.frame)

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        for known in self._optimizers.values():
            self._append_rows(known.schedules, known.record.number)
            self._check_recreated(known)
        self._append_rows(self._schedules_without_steps())

    def _append_rows(self, schedules: Iterable[Schedule], optimizer: int = 0) -> None:
        """Append the rows of live schedulers of an optimizer; 0 if the optimizer never steps."""
        for schedule in schedules:
            row = schedule.row(optimizer)
            if row is not None:
                self.program.log.append(row)

    def _schedules_without_steps(self) -> Iterator[Schedule]:
        """Yield the schedulers whose optimizers have not stepped."""
        optimizers = [record.ref() for record in self._optimizers]
        # A wrapper of an optimizer has the same parameter groups as the optimizer.
        stepped = {id(group) for each in optimizers if each for group in each.param_groups}
        for schedule in self._schedules.values():
            scheduler = schedule.scheduler()
            own = None if scheduler is None else scheduler.optimizer
            if own is None or any(own is each for each in optimizers):
                continue
            if not any(id(group) in stepped for group in own.param_groups):
                yield schedule

    def _met(self, record: OptimizerRecord, optimizer: Optimizer, event: Stepping) -> _Optimizer:
        """Return a record for an optimizer at its first step, and check its parameters."""
        variables = list(self._variables(event.frame))
        name = self.program.optimizer_name(optimizer, user_frame(event.frame))
        place = self.program.place(event.frame)
        around = [frame.f_code for frame in user_frames(user_frame(event.frame))]
        self._check_shared_parameters(optimizer, name, place)
        found: dict[int, Schedule] = {}
        for values in variables:
            for label, each in schedulers(values):
                own = each.optimizer is optimizer
                if own or len(self._schedules) < _MAX_OPTIMIZERS:
                    schedule = Schedule.create(each, label)
                    (found if own else self._schedules).setdefault(id(each), schedule)
        is_new = self._complete and record.steps == 1
        row = OptimizerRow(record.number, around=tuple(around), is_new=is_new)
        self.program.log.append(row)
        self._append_rows(found.values(), record.number)
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


class EarlySchedulers(Listener):
    """Listener that reports a scheduler that stepped before its optimizer.

    The variables of the frame that enters the recording are searched for schedulers, including
    lists and objects among them. A function that creates an optimizer during the recording is
    searched, too. Nothing is reported for a program with a GradScaler, because the scaler may have
    skipped earlier steps of the optimizer.
    """

    needs = ()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        values = {} if program.frame is None else local_variables(program.frame)
        self._scaled = False  # True once a loss was scaled
        self._names = frozenset(values)
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
        record = program.steps.log.get(optimizer)
        if record is None or not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            return  # the optimizer has no scheduler (private, 2.13)
        if not program.log.admits(EarlySchedulers, record.number, in_run=True):
            return  # the optimizer has stepped before
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
