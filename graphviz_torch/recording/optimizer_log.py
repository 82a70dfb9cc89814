"""Keep one record for each optimizer that steps, for recordings and for `watch`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from ..internals.functions import TensorBase
from ..internals.hooks.optimizers import Stepped, Stepping
from ..internals.probes import run_unobserved
from ..internals.tensors.memory import has_memory

_MAX_OPTIMIZERS = 64  # number of records that are kept
_numbers = count(1)


class OptimizerRecord:
    """The steps and learning rates of an optimizer, up to its last step.

    Args:
        optimizer: the optimizer. Only a weak reference to it is kept.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.number = next(_numbers)  # identifies the optimizer in rows of the log
        self.ref = weakref.ref(optimizer)
        self.kind = type(optimizer).__name__
        self.steps = 0  # number of steps, including the running step
        # The learning rate of each parameter group; None if reading it would wait for a device.
        self.rates: list[float | None] = []
        self.computes = False  # True if the program calls `step` with a closure
        self.had_state = False  # True if the optimizer had state before its last step
        self.keeps_state = False  # True if the optimizer had state after a step


Record = TypeVar("Record", bound=OptimizerRecord)


class OptimizerLog(Generic[Record]):
    """The records of all optimizers that have stepped.

    Args:
        create: creates the record of an optimizer.
    """

    def __init__(self, create: Callable[[Optimizer], Record]) -> None:
        self._create = create
        self._records: dict[int, Record] = {}  # by id() of the optimizer

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def get(self, optimizer: Optimizer) -> Record | None:
        """Return the record of an optimizer; None if it has not stepped."""
        found = self._records.get(id(optimizer))
        return found if found is not None and found.ref() is optimizer else None

    def on_optimizer_step_start(self, event: Stepping) -> Record:
        """Update and return the record of the optimizer that is about to step."""
        optimizer = event.optimizer
        record = self.get(optimizer)
        if record is None:
            self._records = {k: r for k, r in self._records.items() if r.ref() is not None}
            while len(self._records) >= _MAX_OPTIMIZERS:
                del self._records[next(iter(self._records))]
            record = self._records[id(optimizer)] = self._create(optimizer)
        record.steps += 1
        record.rates = [learning_rate(group) for group in optimizer.param_groups]
        record.computes = any(map(callable, event.args))
        record.had_state = bool(optimizer.state)
        return record

    def on_optimizer_step_end(self, event: Stepped) -> Record | None:
        """Update and return the record of an optimizer that has stepped."""
        record = self.get(event.optimizer)
        if record is not None:
            record.keeps_state = record.keeps_state or bool(event.optimizer.state)
        return record


def learning_rate(group: Mapping[str, Any], name: str = "lr") -> float | None:
    """Return the learning rate of a parameter group as a float.

    The result is None if the group has no learning rate, or if reading it would wait for a device.

    Args:
        group: the parameter group.
        name: key of the learning rate, such as "lr" or "initial_lr".

    >>> import torch
    >>> learning_rate({"lr": torch.tensor(0.5)}), learning_rate({"lr": 1}), learning_rate({})
    (0.5, 1.0, None)
    """
    rate = group.get(name)
    if type(rate) is float:
        return rate
    if isinstance(rate, (int, float)):
        return float(rate)
    if type(rate) is Tensor and rate.is_cpu and has_memory(rate) and TensorBase.numel(rate) == 1:
        return float(run_unobserved(TensorBase.item, rate))
    return None
