"""Find a program's learning rate schedulers, and describe them by rows."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import count
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    LRScheduler,
    SequentialLR,
)

from ...graph.immutable import mutable
from ...internals.tensors.pytree import own_attributes
from ..program.rows import CosineRow, SchedulerRow

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


_numbers = count(1)


@mutable
class Schedule:
    """A scheduler that was found in the program."""

    scheduler: weakref.ref[LRScheduler]
    name: str
    started: int  # number of the scheduler's steps before it was found
    number: int = field(default_factory=lambda: next(_numbers))  # identifies it in rows of the log
    last: int = 0  # `last_epoch` at the optimizer's last step

    @classmethod
    def create(cls, scheduler: LRScheduler, name: str) -> Schedule:
        """Create the record of a live scheduler."""
        return cls(weakref.ref(scheduler), name, _count(scheduler))

    def row(self, optimizer: int = 0) -> SchedulerRow | None:
        """Return the row of a live scheduler, or None.

        Args:
            optimizer: number of the scheduler's optimizer; 0 if the optimizer does not step.
        """
        scheduler = self.scheduler()
        if scheduler is None:
            return None
        steps, last = _count(scheduler) - self.started, scheduler.last_epoch
        cosines = [
            CosineRow(int(each.T_max), each.last_epoch, is_inner=each is not scheduler)
            for each in _active(scheduler)
            if type(each) is CosineAnnealingLR
        ]
        return SchedulerRow(self.number, self.name, optimizer, steps, last, tuple(cosines))


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
