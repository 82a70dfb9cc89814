"""Compute numbers on a tensor's device now, and read them later with one copy from each device.

A listener computes its numbers when an event occurs, because the program may change the tensors
afterwards. If it read them at once, the program would wait for the device. Operations inside
`unobserved()` are hidden from modes, subclasses, graphs and watches, and autocast does not change
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from .exceptions import ignore_exceptions
from .functions import TensorBase
from .guards import no_autocast, no_autograd, no_functions, no_operators
from .hooks.dispatch import unseen
from .streams import current_stream, wait_for
from .tensors.memory import is_on_cpu, may_be_read

Result = TypeVar("Result")


@contextmanager
def unobserved() -> Iterator[None]:
    """Hide the block's tensor operations from modes, subclasses, graphs, watches and autocast."""
    with no_functions(), no_operators(), unseen(), no_autograd(), no_autocast():
        yield


def run_unobserved(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function as inside `unobserved()`; this takes less time than the context manager."""
    with no_functions(), no_operators(), unseen(), no_autograd(), no_autocast():
        return function(*args)


class Probe:
    """A few numbers of a tensor: on the CPU they are read at once, elsewhere by `fetch`.

    Args:
        numbers: a tensor of the numbers, computed inside `unobserved()`.
    """

    __slots__ = ("_numbers", "_stream", "values")

    def __init__(self, numbers: Tensor) -> None:
        flat = TensorBase.reshape(numbers, (-1,))
        here = is_on_cpu(flat)
        # The numbers in row-major order; None before `fetch`; empty if the device has failed.
        self.values: list[Any] | None = TensorBase.tolist(flat) if here else None
        self._numbers = None if here else flat
        self._stream = current_stream(flat.device.index) if flat.is_cuda else 0


def probe(function: Callable[..., Tensor], *tensors: Tensor) -> Probe | None:
    """Return a probe of the result of a function; None if any of the tensors cannot be read now.

    >>> probe(torch.amax, torch.tensor([1.0, 3.0])).values
    [3.0]
    >>> probe(torch.amax, torch.ones(2, device="meta")) is None
    True
    """
    with no_functions():
        readable = all(map(may_be_read, tensors))
    return run_unobserved(lambda: Probe(function(*tensors))) if readable else None


def fetch(probes: Sequence[Probe]) -> list[list[Any]]:
    """Return the values of all probes, after one copy from each device for each dtype.

    >>> fetch([Probe(torch.ones(2)), Probe(torch.arange(6).view(2, 3))])
    [[1.0, 1.0], [0, 1, 2, 3, 4, 5]]
    """
    groups: dict[tuple[torch.device, torch.dtype], list[Probe]] = {}
    for each in probes:
        if each._numbers is not None:
            key = each._numbers.device, each._numbers.dtype
            groups.setdefault(key, []).append(each)
    for group in groups.values():
        with ignore_exceptions():  # raised if the device has failed
            run_unobserved(_fetch, group)
    return [each.values or [] for each in probes]


def _fetch(group: Sequence[Probe]) -> None:
    there = [(each, each._numbers) for each in group if each._numbers is not None]
    for each, numbers in there:
        each._numbers = None
        if numbers.is_cuda:
            wait_for(numbers.device.index, each._stream)
    flat = TensorBase.tolist(torch.cat([numbers for _, numbers in there]))
    start = 0
    for each, numbers in there:
        end = start + TensorBase.numel(numbers)
        each.values = flat[start:end]
        start = end
