"""Numbers that are computed on a tensor's device now, and read later, once from each device.

A listener computes some numbers when an event occurs, because the program changes its tensors
afterwards. To read them at once would make the program wait for the device. Code that runs
`unobserved` is seen by no mode, subclass, graph or watch, and not changed by autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from .functions import TensorBase
from .guards import no_autocast, no_autograd, no_functions, no_operators
from .hooks.dispatch import unseen
from .streams import current_stream, wait_for
from .tensors.memory import is_on_cpu, may_be_read

Result = TypeVar("Result")


@contextmanager
def unobserved() -> Iterator[None]:
    """Hide operations on tensors from modes, subclasses, graphs, watches and autocast."""
    with no_functions(), no_operators(), unseen(), no_autograd(), no_autocast():
        yield


def run_unobserved(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function inside `unobserved()`, which costs less than entering it."""
    with no_functions(), no_operators(), unseen(), no_autograd(), no_autocast():
        return function(*args)


class Probe:
    """A tensor of a few numbers, read at once on the CPU, and by `fetch` on other devices.

    Args:
        numbers: the tensor, computed inside `unobserved()`.
    """

    __slots__ = ("_numbers", "_stream", "values")

    def __init__(self, numbers: Tensor) -> None:
        flat = TensorBase.reshape(numbers, (-1,))
        here = is_on_cpu(flat)
        # Flat and row-major; None before `fetch`; empty if the device has failed.
        self.values: list[Any] | None = TensorBase.tolist(flat) if here else None
        self._numbers = None if here else flat
        self._stream = current_stream(flat.device.index) if flat.is_cuda else 0


def probe(function: Callable[..., Tensor], *tensors: Tensor) -> Probe | None:
    """Return what a function computes from tensors; None if one of them cannot be read now.

    >>> probe(torch.amax, torch.tensor([1.0, 3.0])).values
    [3.0]
    >>> probe(torch.amax, torch.ones(2, device="meta")) is None
    True
    """
    with no_functions():
        readable = all(map(may_be_read, tensors))
    return run_unobserved(lambda: Probe(function(*tensors))) if readable else None


def fetch(probes: Sequence[Probe]) -> list[list[Any]]:
    """Return the values of all probes, with one copy from each device for each dtype.

    >>> fetch([Probe(torch.ones(2)), Probe(torch.arange(6).view(2, 3))])
    [[1.0, 1.0], [0, 1, 2, 3, 4, 5]]
    """
    groups: dict[tuple[torch.device, torch.dtype], list[Probe]] = {}
    for each in probes:
        if each._numbers is not None:
            key = each._numbers.device, each._numbers.dtype
            groups.setdefault(key, []).append(each)
    for group in groups.values():
        with suppress(Exception):  # a device that has failed
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
