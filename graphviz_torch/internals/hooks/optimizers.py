"""Watch the batches of DataLoaders, and the start and end of each optimizer step.

While PyTorch runs its optimizer hooks, another thread must not add or remove one, or `step()`
raises. The first watch therefore registers two hooks that stay registered. They do nothing if no
watch is open. Data loaders of other libraries are not seen.

Uses private API (2.13): the attribute that PyTorch sets on the `step` method of each optimizer
class, and the iterator class of all DataLoaders with its attributes. The iterator's `__next__` is
replaced while a watch is open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import Any
from weakref import ref

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import RandomSampler, dataloader

from ...graph.immutable import NamedTuple
from ..dynamo import not_compiled_hook
from ..tensors.references import instances_of, subclasses_of
from .captures import is_captured
from .watch import Installation, Replacement, Watch

_ITERATOR: Any = dataloader._BaseDataLoaderIter


class Stepping(NamedTuple):
    """An optimizer that is about to step."""

    optimizer: Optimizer
    args: tuple[Any, ...]  # arguments of `step`
    frame: FrameType  # PyTorch's frame that calls the step


class Stepped(NamedTuple):
    """An optimizer that has stepped. A step that raised is not reported."""

    optimizer: Optimizer


class BatchCame(NamedTuple):
    """A batch that a DataLoader has returned."""

    batch: Any
    loader: int  # identifies the loader; equal in all passes over its data
    number: int  # index of the batch in this pass over the data
    left: int  # number of batches left in this pass; 0 if unknown
    workers: int  # number of worker processes
    stream: bool  # True if the data set is an IterableDataset
    shuffles: bool  # True if each pass over the data has another order
    frame: FrameType  # the frame that requested the batch
    # Attributes of the dataset in this process that are numbers, texts or flags, if persistent
    # workers have copies of the dataset; {} otherwise.
    settings: dict[str, Any]


class BatchWatch(Watch):
    """A watch on the batches that any thread requests from a DataLoader.

    Args:
        on_batch: called with the event after the loader has returned a batch.
        on_request: called before the program gets a batch from the loader.
    """

    def __init__(
        self,
        on_batch: Callable[[BatchCame], object] = lambda event: None,
        on_request: Callable[[], object] = lambda: None,
    ) -> None:
        self.on_request, self.on_batch = on_request, on_batch


class StepWatch(Watch):
    """A watch on the steps of every optimizer, in any thread.

    Args:
        on_step_start, on_step_end: called with the event before and after a step.
    """

    def __init__(
        self,
        on_step_start: Callable[[Stepping], object],
        on_step_end: Callable[[Stepped], object] = lambda event: None,
    ) -> None:
        self.on_step_start, self.on_step_end = on_step_start, on_step_end


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer, over all parameter groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


_FOUND: list[ref[Optimizer]] = []  # by the last search through all objects


def optimized_parameters(
    asked: Iterable[int] | None = None, *, without: Container[frozenset[int]] = ()
) -> set[int]:
    """Return the id() of each parameter of any optimizer in this process.

    Args:
        asked: the id() of some parameters. If the optimizers that an earlier call has found hold
            all of them, the parameters of other optimizers may be missing.
        without: sets of the id() of parameters. An optimizer is left out if its parameters are
            exactly those of one set.
    """
    # PyTorch sets the attribute when the first optimizer of a class is created.
    kinds = [kind for kind in subclasses_of(Optimizer) if getattr(kind.step, "hooked", False)]
    if asked is not None:  # the search through all objects takes longer than a small step
        known = set().union(*_parameter_sets(optimizer() for optimizer in _FOUND))
        if known.issuperset(asked):
            return known
    found = instances_of(kinds) if kinds else []  # may contain garbage that is not collected yet
    _FOUND[:] = map(ref, found)
    return set().union(*(ids for ids in _parameter_sets(found) if ids not in without))


def _parameter_sets(optimizers: Iterable[Any]) -> Iterator[frozenset[int]]:
    for each in optimizers:
        if hasattr(each, "param_groups"):  # not if the optimizer was freed, or failed in __init__
            yield frozenset(map(id, parameters_of(each)))


@cache
def _register() -> None:
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


@not_compiled_hook
def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    event = Stepping(optimizer, (*args, *kwargs.values()), sys._getframe(1))
    for watch in () if is_captured() else _INSTALLATION.watchers:
        watch.on_step_start(event)


@not_compiled_hook
def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    event = Stepped(optimizer)
    watchers = () if is_captured() else _INSTALLATION.watchers
    # The last watch may close a recording, which must see the step first: hence reverse order.
    for watch in reversed(watchers):
        watch.on_step_end(event)


def _wrap_next(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __next__(iterator: Any) -> Any:
        for watch in _BATCHES.watchers:
            watch.on_request()
        batch = original(iterator)
        event = _batch_event(iterator, batch, sys._getframe(1))
        if event is not None:
            for watch in _BATCHES.watchers:
                watch.on_batch(event)
        return batch

    return __next__


def _batch_event(iterator: Any, batch: Any, frame: FrameType) -> BatchCame | None:
    """Return the event of a batch; None for an iterator without PyTorch's usual attributes."""
    try:
        sampler, number = iterator._index_sampler, iterator._num_yielded - 1
        stream = iterator._dataset_kind == dataloader._DatasetKind.Iterable
        workers = iterator._num_workers
    except AttributeError:
        return None
    left = 0
    with suppress(TypeError):  # the sampler may have no length
        left = 0 if stream else len(sampler) - number - 1
    rows = getattr(sampler, "sampler", sampler)  # a BatchSampler contains the sampler of rows
    shuffles = isinstance(rows, RandomSampler)
    persistent = getattr(iterator, "_persistent_workers", False)
    settings = _settings(iterator._dataset) if workers and persistent and number == 0 else {}
    return BatchCame(batch, id(sampler), number, left, workers, stream, shuffles, frame, settings)


def _settings(dataset: Any) -> dict[str, Any]:
    """Return the attributes of a dataset that are numbers, strings and the like, by name.

    The attributes of a dataset inside it are included.
    """
    inner = getattr(dataset, "__dict__", {}).get("dataset")
    found = getattr(inner, "__dict__", {}) | getattr(dataset, "__dict__", {})
    return {name: value for name, value in found.items() if type(value) in (bool, int, float, str)}


_INSTALLATION: Installation[StepWatch] = Installation(_register, lambda: None)
StepWatch.installation = _INSTALLATION
_BATCHES = Replacement[BatchWatch](lambda: [(_ITERATOR, "__next__", _wrap_next)])
BatchWatch.installation = _BATCHES
