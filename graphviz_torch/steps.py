"""Noticing that an optimizer is about to step.

PyTorch walks over its hooks while they run, and a hook that is added or removed meanwhile, in
another thread, makes that thread's `step()` raise. So one hook is registered by the first watch,
and stays: without a watch it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

_watches: list[StepWatch] = []


class StepWatch:
    """Calls `see` with each optimizer, of any thread, that is about to step, until `remove()`."""

    def __init__(self, see: Callable[[Optimizer], None]) -> None:
        self.see = see
        _register()
        _watches.append(self)

    def remove(self) -> None:
        """Stop watching; once is enough."""
        if self in _watches:
            _watches.remove(self)


@cache
def _register() -> None:
    register_optimizer_step_pre_hook(_stepping)


def _stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for watch in tuple(_watches):
        watch.see(optimizer)
