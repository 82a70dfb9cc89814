"""The seam of steps: an optimizer is about to step, and it has stepped.

PyTorch walks over its hooks while they run, and a hook that is added or removed meanwhile, in
another thread, makes that thread's `step()` raise. So two hooks are registered by the first watch,
and stay: without a watch they do nothing.

Private: the mark that the first optimizer of a class leaves on its `step` (2.13).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .installation import Installation


class Stepping(NamedTuple):
    """An optimizer is about to step."""

    optimizer: Optimizer
    args: tuple[Any, ...]  # what `step` is called with
    frame: FrameType  # PyTorch's around the step


class Stepped(NamedTuple):
    """An optimizer has stepped. Of a step that raised nothing is told."""

    optimizer: Optimizer


class StepWatch:
    """Tells of each optimizer, of any thread, that steps, until `close()`.

    Args:
        stepping, stepped: take the events.
    """

    def __init__(
        self,
        stepping: Callable[[Stepping], object],
        stepped: Callable[[Stepped], object] = lambda event: None,
    ) -> None:
        self.stepping, self.stepped = stepping, stepped

    def open(self) -> None:
        """Watch from now on."""
        _INSTALLATION.add(self)

    def close(self) -> None:
        """Watch no more, if it does."""
        _INSTALLATION.discard(self)

    def __enter__(self) -> StepWatch:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def optimized_parameters() -> set[int]:
    """id() of the parameters that the optimizers of this process hold."""
    if not _any_optimizer():
        return set()  # all objects of the process need not be looked through
    # Garbage that the collector has yet to take too: no harm.
    found = [o for o in gc.get_objects() if issubclass(type(o), Optimizer)]
    groups = (group for optimizer in found for group in getattr(optimizer, "param_groups", ()))
    return {id(parameter) for group in groups for parameter in group["params"]}


def _any_optimizer() -> bool:
    """Has this process ever made an optimizer."""
    kinds: list[Any] = [Optimizer]
    for kind in kinds:  # which grows
        if getattr(kind.step, "hooked", False):
            return True
        kinds += kind.__subclasses__()
    return False


@cache
def _register() -> None:
    register_optimizer_step_pre_hook(_stepping)
    register_optimizer_step_post_hook(_stepped)


def _stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    event = Stepping(optimizer, (*args, *kwargs.values()), sys._getframe(1))
    for watch in _INSTALLATION.watchers:
        watch.stepping(event)


def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    event = Stepped(optimizer)
    for watch in reversed(_INSTALLATION.watchers):  # a recording knows of it before it is closed
        watch.stepped(event)


_INSTALLATION: Installation[StepWatch] = Installation(_register, lambda: None)
