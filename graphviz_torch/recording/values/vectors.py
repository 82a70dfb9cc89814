"""Compute the projection vectors for fingerprints, which are equal on every machine.

The vectors are computed from cosines, sines and squares of the index, without a random generator:

    wave    cosine and sine of a whole number of turns along a dimension. If the elements are
            shifted cyclically along the dimension, the length of the pair (projection on the
            cosine, projection on the sine) does not change.
    noise   pseudo-random numbers. If two elements along the dimension are exchanged, the projection
            changes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor

from ...internals.functions import TensorBase

_GOLDEN = (math.sqrt(5) - 1) / 2
_ROOT = math.sqrt(2) - 1
_MAX_CACHED = 1 << 20  # largest number of elements of all cached vectors together


class Vectors(NamedTuple):
    """The projection vectors for tensors of one shape.

    A tensor is viewed as a matrix. The last dimension becomes the columns, and all other dimensions
    together become the rows.
    """

    along: Tensor  # [3, columns]: ones, and cosine and sine along the last dimension
    columns: Tensor  # [columns]: noise
    down: Tensor  # [3, rows]: cosine, sine along the second-last dimension, noise along the first
    rows: Tensor  # [rows]: noise


class VectorTable:
    """A cache of projection vectors by shape, dtype and device."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, Vectors] = OrderedDict()
        self._size = 0

    def for_shape(self, shape: tuple[int, ...], like: Tensor) -> Vectors:
        """Return the vectors for a shape, in the dtype and on the device of `like`."""
        if like.is_cpu and self is not CPU_VECTORS:
            return CPU_VECTORS.for_shape(shape, like)
        key = shape, like.dtype, like.device
        found = self._known.get(key)
        if found is None:
            found = _make_vectors(shape, like.dtype, like.device)
            self._known[key] = found
            self._size += _size(found)
            while self._size > _MAX_CACHED:
                self._size -= _size(self._known.popitem(last=False)[1])
        return found


CPU_VECTORS = VectorTable()  # shared by all recordings


def _make_vectors(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Vectors:
    columns = shape[-1] if shape else 1
    rows = math.prod(shape[:-1])
    near, first = (shape[-2], shape[0]) if len(shape) > 1 else (1, 1)
    places, lines = (torch.arange(n, dtype=torch.float64, device="cpu") for n in (columns, rows))
    along = torch.stack([torch.ones_like(places), *_wave(places, columns)])
    blocks = torch.floor(lines * first / rows)
    down = torch.stack([*_wave(lines % near, near), _noise(blocks, _GOLDEN)])
    made = along, _noise(places, _GOLDEN), down, _noise(lines, _ROOT)
    return Vectors(*(TensorBase.to(one, device, dtype) for one in made))


def _wave(places: Tensor, size: int) -> tuple[Tensor, Tensor]:
    turns = max(round(_GOLDEN**2 * size), 1)
    while math.gcd(turns, size) > 1:  # with a common divisor, the wave would have a shorter period
        turns -= 1
    angles = places * turns % size * (2 * math.pi / size)
    return torch.cos(angles), torch.sin(angles)


def _noise(places: Tensor, seed: float) -> Tensor:
    counted = places + 1
    return math.sqrt(3) * (2 * torch.frac(counted * torch.frac(counted * seed)) - 1)


def _size(vectors: Vectors) -> int:
    return sum(TensorBase.numel(one) for one in vectors)
