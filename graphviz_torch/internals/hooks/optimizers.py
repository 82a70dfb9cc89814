"""The seam of steps: a batch is asked for and came, an optimizer is about to step, and has stepped.

PyTorch walks over its hooks while they run, and a hook that is added or removed meanwhile, in
another thread, makes that thread's `step()` raise. So two hooks are registered by the first watch,
and stay: without a watch they do nothing. Loaders of other libraries than PyTorch are not noticed.

Private: the mark that the first optimizer of a class leaves on its `step`; the iterator that all
DataLoaders hand out, whose `__next__` is replaced while anybody watches, and what it knows of its
loader (2.13).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Container
from contextlib import suppress
from functools import cache
from itertools import compress
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader

from ..dynamo import uncompiled_hook
from .captures import is_captured
from .watch import Installation, Watch

_ITERATOR: Any = dataloader._BaseDataLoaderIter
_next: Any = _ITERATOR.__next__


class Stepping(NamedTuple):
    """An optimizer is about to step."""

    optimizer: Optimizer
    args: tuple[Any, ...]  # what `step` is called with
    frame: FrameType  # PyTorch's around the step


class Stepped(NamedTuple):
    """An optimizer has stepped. Of a step that raised nothing is told."""

    optimizer: Optimizer


class BatchCame(NamedTuple):
    """A DataLoader has given a batch."""

    batch: Any
    loader: int  # the same number in all passes through the loader
    number: int  # of the batch, in its pass
    left: int  # batches that its pass is still to give; 0 where that is not known
    workers: int
    stream: bool  # is it of an IterableDataset
    frame: FrameType  # that asked for it


class BatchWatch(Watch):
    """Tells when any thread asks a DataLoader for a batch, until `close()`.

    Args:
        came: takes the event, once the batch is there.
        asked: is called before it is made.
    """

    def __init__(
        self,
        came: Callable[[BatchCame], object] = lambda event: None,
        asked: Callable[[], object] = lambda: None,
    ) -> None:
        self.asked, self.came = asked, came


class StepWatch(Watch):
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


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def optimized_parameters(*, without: Container[frozenset[int]] = ()) -> set[int]:
    """id() of the parameters that the optimizers of this process hold.

    Args:
        without: what each optimizer holds that is left out, and what is wrapped around it.
    """
    kinds = _kinds()
    if not any(getattr(kind.step, "hooked", False) for kind in kinds):  # none was ever made
        return set()  # all objects of the process need not be looked through
    # Garbage that the collector has yet to take too: no harm. No call of Python's for each object.
    there = gc.get_objects()
    found = list(compress(there, map(kinds.__contains__, map(type, there))))
    del there
    held = (frozenset(map(id, parameters_of(o))) for o in found if hasattr(o, "param_groups"))
    return set().union(*(parameters for parameters in held if parameters not in without))


def _kinds() -> set[Any]:
    """All classes of optimizers."""
    kinds: list[Any] = [Optimizer]
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    return set(kinds)


@cache
def _register() -> None:
    register_optimizer_step_pre_hook(_stepping)
    register_optimizer_step_post_hook(_stepped)


@uncompiled_hook
def _stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    event = Stepping(optimizer, (*args, *kwargs.values()), sys._getframe(1))
    for watch in () if is_captured() else _INSTALLATION.watchers:
        watch.stepping(event)


@uncompiled_hook
def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    event = Stepped(optimizer)
    watchers = () if is_captured() else _INSTALLATION.watchers
    for watch in reversed(watchers):  # a recording knows of it before it is closed
        watch.stepped(event)


def _watched(iterator: Any) -> Any:
    for watch in _BATCHES.watchers:
        watch.asked()
    batch = _next(iterator)
    event = _event_of(iterator, batch, sys._getframe(1))
    if event is not None:
        for watch in _BATCHES.watchers:
            watch.came(event)
    return batch


def _event_of(iterator: Any, batch: Any, frame: FrameType) -> BatchCame | None:
    """None of an iterator that PyTorch's __init__ has not made: it tells nothing."""
    try:
        sampler, number = iterator._index_sampler, iterator._num_yielded - 1
        stream = iterator._dataset_kind == dataloader._DatasetKind.Iterable
        workers = iterator._num_workers
    except AttributeError:
        return None
    left = 0
    with suppress(TypeError):  # a sampler without a length
        left = 0 if stream else len(sampler) - number - 1
    return BatchCame(batch, id(sampler), number, left, workers, stream, frame)


def _replace_next() -> None:
    if _ITERATOR.__next__ is _next:  # else somebody else has put theirs there
        _ITERATOR.__next__ = _watched


def _restore_next() -> None:
    if _ITERATOR.__next__ is _watched:
        _ITERATOR.__next__ = _next


_INSTALLATION: Installation[StepWatch] = Installation(_register, lambda: None)
StepWatch.installation = _INSTALLATION
_BATCHES: Installation[BatchWatch] = Installation(_replace_next, _restore_next)
BatchWatch.installation = _BATCHES
