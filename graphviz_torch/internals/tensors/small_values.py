"""Read the values of small tensors: at once on the CPU, by a later copy from other devices.

The values are saved at once, because the program may change the tensor afterwards. On a device
other than the CPU, the tensor is copied on the device, and all such copies are fetched together
later. Tensors with more than `MOST_ELEMENTS` elements, tensors without memory of their own
(meta, fake, batched, sparse, nested), local shards of DTensors, and tensors inside a CUDA graph
capture are not read.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ...graph.tensors import MOST_ELEMENTS
from ..exceptions import ignore_exceptions
from ..functions import TensorBase
from ..guards import no_functions
from ..probes import Probe, fetch, run_unobserved
from .memory import PLAIN, elements, have_memory, may_be_read

Key = TypeVar("Key", bound=Hashable)
Values = tuple[Any, ...]  # the elements of a tensor in row-major order


class _Shapes(dict[tuple[int, ...], bool]):
    """A cache: shape -> True if it has at most `MOST_ELEMENTS` elements.

    The lookup of a known shape runs no Python code.
    """

    def __missing__(self, shape: tuple[int, ...]) -> bool:
        if any(type(size) is not int for size in shape):
            return False  # a comparison with a SymInt would add a guard
        found = 0 <= math.prod(shape) <= MOST_ELEMENTS
        if len(self) < _MAX_CACHED_SHAPES:
            self[shape] = found
        return found


_MAX_CACHED_SHAPES = 10_000  # maximum number of shapes in the cache
# Raises TypeError for a shape with symbolic sizes. The method is faster than an index.
is_small_shape = _Shapes().__getitem__


def is_small(tensor: Tensor) -> bool:
    """Return True for a tensor of at most `MOST_ELEMENTS` elements."""
    try:
        return is_small_shape(tensor.shape)
    except (RuntimeError, TypeError):  # raised for nested tensors and for symbolic sizes
        return False


class SmallValues(Generic[Key]):
    """A collection of the values of small tensors, by key."""

    def __init__(self) -> None:
        self._found: dict[Key, Values] = {}
        self._copies: dict[Key, Probe] = {}  # copies of tensors that are not on the CPU

    def see(self, key: Key, tensor: Tensor) -> None:
        """Save the current values of a tensor with at most `MOST_ELEMENTS` elements."""
        self.see_all([key], [tensor])

    def see_all(self, keys: Sequence[Key], tensors: Sequence[Tensor]) -> None:
        """Save the current values of several tensors with at most `MOST_ELEMENTS` elements each."""
        run_unobserved(self._see_all, keys, tensors)

    def _see_all(self, keys: Sequence[Key], tensors: Sequence[Tensor]) -> None:
        if _are_on_cpu(tensors):  # the common case: `map` avoids a Python frame per tensor
            flat = map(TensorBase.tolist, map(TensorBase.ravel, tensors))
            self._found.update(zip(keys, map(tuple, flat), strict=True))
            return
        for key, tensor in zip(keys, tensors, strict=True):
            with ignore_exceptions():  # raised for tensors that PyTorch cannot read
                self._see(key, tensor)

    def _see(self, key: Key, tensor: Tensor) -> None:
        count = TensorBase.numel(tensor)
        if type(tensor) not in PLAIN:
            found = elements(tensor)
            if tensor.layout is not torch.strided or len(found.tensors) != 1 or found.extent:
                return
            [tensor] = found.tensors
        if TensorBase.numel(tensor) != count or not may_be_read(tensor):
            return
        if tensor.is_cpu:
            self._found[key] = tuple(TensorBase.tolist(TensorBase.ravel(tensor)))
        else:
            self._copies[key] = Probe(torch.clone(TensorBase.detach(tensor)))

    def fetch(self) -> dict[Key, Values]:
        """Return all values by key, after one copy from each device for each dtype."""
        copies, self._copies = self._copies, {}
        rows = fetch([*copies.values()])
        self._found |= {key: tuple(row) for key, row in zip(copies, rows, strict=True) if row}
        return self._found


def small_values(tensors: Mapping[Key, Tensor]) -> dict[Key, Values]:
    """Return the values of those tensors that are small; this waits for the tensors' devices.

    >>> small_values({"x": torch.arange(3.0), "w": torch.ones(9)})
    {'x': (0.0, 1.0, 2.0)}
    """
    found: SmallValues[Key] = SmallValues()
    with no_functions():
        small = {key: tensor for key, tensor in tensors.items() if is_small(tensor)}
    found.see_all([*small], [*small.values()])
    return found.fetch()


def _are_on_cpu(tensors: Sequence[Tensor]) -> bool:
    """Return True if all tensors are ordinary dense tensors in the memory of the CPU."""
    strided = torch.strided
    plain = [type(one) in PLAIN and one.is_cpu and one.layout is strided for one in tensors]
    return all(plain) and have_memory(tensors)
