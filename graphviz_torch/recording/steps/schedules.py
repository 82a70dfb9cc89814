"""Schedulers that step before their optimizers do: the first rate is passed over."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import FrameType

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...graph.events import EarlySchedulerStep
from ...internals.frames import local_variables, outwards, user_frame
from ...internals.hooks.optimizers import Stepping
from ..events.code import called, codes, is_made_by_call
from ..listener import Listener, RunEnded
from ..program import Program
from .schedulers import schedulers


class EarlySchedulers(Listener):
    """Notes a scheduler that has stepped before its optimizer did.

    Known are those that the frame which enters the recording holds, by themselves or in a list or
    an object, and those that a function has made since, together with their optimizer. A scaler may
    have skipped the steps before.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        values = {} if program.frame is None else local_variables(program.frame)
        self._scaled = False  # has a loss been multiplied by a loss scale
        self._names = frozenset(values)
        self._met: set[int] = set()  # id() of the optimizers that have stepped
        self._waiting = [
            (name, weakref.ref(value))
            for name, value in schedulers(values)
            if not getattr(value.optimizer, "_opt_called", False)  # private (2.13)
        ]

    def backward_ended(self, event: RunEnded) -> None:
        self._scaled = self._scaled or event.backward.call.loss_scale is not None

    def stepping(self, event: Stepping) -> None:
        """An optimizer is about to step, for the first time if a scheduler waits for it."""
        optimizer, program, frame = event.optimizer, self.program, user_frame(event.frame)
        if id(optimizer) in self._met or not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            return  # private (2.13)
        self._met.add(id(optimizer))
        frames = outwards(frame, program.frame)
        known = [(name, scheduler()) for name, scheduler in self._waiting]
        known += [each for one in frames for each in self._made_since(one, optimizer)]
        for name, scheduler in known:
            if scheduler is None or scheduler.optimizer is not optimizer or self._scaled:
                continue
            if getattr(scheduler, "_step_count", 0) > 1:  # private (2.13)
                own, variable = [one.f_code for one in frames], name.rpartition(".")[2]
                place = called(own, "step", variable)
                place = place or called(codes(program, more=own), "step", variable)
                label = program.optimizer_name(optimizer, frame)
                self.events.note(EarlySchedulerStep(scheduler=name, optimizer=label), place)
                return

    def _made_since(
        self, frame: FrameType, optimizer: Optimizer
    ) -> Iterator[tuple[str, LRScheduler]]:
        """The variables with a scheduler that this frame has made since the recording began."""
        values = local_variables(frame)
        own = [name for name, value in values.items() if value is optimizer]
        new = frame is not self.program.frame or self._names.isdisjoint(own)
        if new and any(is_made_by_call(frame, name) for name in own):
            yield from ((n, v) for n, v in values.items() if issubclass(type(v), LRScheduler))
