"""Noticing that an optimizer is about to step, and that it has stepped.

PyTorch walks over its hooks while they run, and a hook that is added or removed meanwhile, in
another thread, makes that thread's `step()` raise. So two hooks are registered by the first watch,
and stay: without a watch they do nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

_watches: list[StepWatch] = []


class StepWatch:
    """Calls `begin` and `end` with each optimizer, of any thread, that steps, until `remove()`.

    No `end` after a step that raises.
    """

    def __init__(
        self,
        begin: Callable[[Optimizer], None],
        end: Callable[[Optimizer], None] = lambda optimizer: None,
    ) -> None:
        self.begin, self.end = begin, end
        _register()
        _watches.append(self)

    def remove(self) -> None:
        """Stop watching; once is enough."""
        if self in _watches:
            _watches.remove(self)


def held_by_optimizers() -> set[int]:
    """id() of the parameters that the optimizers of this process hold."""
    # Garbage that the collector has yet to take too: no harm.
    found = [o for o in gc.get_objects() if issubclass(type(o), Optimizer)]
    groups = (group for optimizer in found for group in getattr(optimizer, "param_groups", ()))
    return {id(parameter) for group in groups for parameter in group["params"]}


@cache
def _register() -> None:
    register_optimizer_step_pre_hook(_stepping)
    register_optimizer_step_post_hook(_stepped)


def _stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for watch in tuple(_watches):
        watch.begin(optimizer)


def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for watch in tuple(_watches):
        watch.end(optimizer)
