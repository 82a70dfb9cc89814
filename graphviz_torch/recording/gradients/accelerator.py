"""Norm, extremes, mean and zeros of gradients on another device than the CPU.

The gradients lie one below the other in rows of one width, and the rows are reduced there, by no
more operators for many gradients than for one; a large one is reduced in blocks. What these give
can be brought over later, and is put together here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...internals.functions import TensorBase
from ...internals.tensors.memory import Elements
from .cpu import SMALL, Row, end_to_end

WIDTH = 1024  # elements in a row
_BLOCK = 1 << 22  # elements of one gradient that are reduced at a time: whole rows


@dataclass(frozen=True, slots=True)
class Reduction:
    """Gradients as far as they are reduced on their device."""

    numbers: Tensor  # all numbers, in a row
    counts: list[int]  # how many rows each gradient has
    elements: list[int]  # of each gradient, with those that a sparse one leaves out
    values: list[int]  # of how many elements the values follow


def reduce(gradients: Sequence[Elements], *, dense: bool = True) -> Reduction:
    """Reduce gradients of one dtype and device as far as that can be done there.

    Args:
        gradients: what may be read of each.
        dense: are the elements of each all that it has, in the order of rows.

    The numbers come in float64 where there is that. They are, for each row: its norm and its sum
    as multiples of the largest absolute value, so that none overflows, that value, how many
    elements are not zero, how many NaN, how many infinite.
    """
    flats = [end_to_end(gradient.tensors) for gradient in gradients]
    blocks = (
        [flats] if len(flats) > 1 else [[block] for block in TensorBase.split(flats[0], _BLOCK)]
    )
    halves = list(zip(*map(_numbers, blocks), strict=True))
    values = [
        row.shape[0]
        if dense and row.shape[0] <= SMALL and not torch.is_complex(gradient.tensors[0])
        else 0
        for row, gradient in zip(flats, gradients, strict=True)
    ]
    there = [TensorBase.view(torch.cat(h, 1) if len(h) > 1 else h[0], -1) for h in halves]
    there += [
        TensorBase.to(row, there[0].dtype)
        for row, count in zip(flats, values, strict=True)
        if count
    ]
    counts = [max(-(-row.shape[0] // WIDTH), 1) for row in flats]
    return Reduction(torch.cat(there), counts, [gradient.numel for gradient in gradients], values)


def _numbers(flats: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Sizes and counts of each row of these one below the other, [3, rows]."""
    if flats[0].dtype.itemsize < 2:  # one of these has no zero
        flats = [TensorBase.float(row) for row in flats]
    parts = []
    end = TensorBase.new_zeros(flats[0], WIDTH)
    for row in flats:
        short = -row.shape[0] % WIDTH if row.shape[0] else WIDTH
        parts += [row, end[:short]] if short else [row]
    rows = TensorBase.view(parts[0] if len(parts) == 1 else torch.cat(parts), -1, WIDTH)
    rows = TensorBase.float(rows) if rows.dtype.itemsize < 4 else rows
    clean = torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    high = torch.amax(torch.abs(clean), 1)
    clean = clean / torch.where(high > 0, high, 1.0)[:, None]
    sizes = [torch.linalg.vector_norm(clean, dim=1), torch.sum(clean, 1), high]
    counts = [
        torch.count_nonzero(rows, dim=1),
        torch.sum(torch.isnan(rows), 1),
        torch.sum(torch.isinf(rows), 1),
    ]
    exact = torch.float32 if rows.device.type == "mps" else torch.float64
    return TensorBase.to(torch.stack(sizes), exact), TensorBase.to(torch.stack(counts), exact)


@np.errstate(all="ignore")  # a norm may overflow
def combine(reduced: Reduction, here: Any) -> list[Row]:
    """What there is to say of each gradient. `here`: the numbers, brought over as an array."""
    rows = sum(reduced.counts)
    norm, total, high, nonzero, nan, inf = here[: 6 * rows].reshape(6, rows).astype(np.float64)
    starts = list(accumulate(reduced.counts, initial=0))[:-1]
    highest = np.maximum.reduceat(high, starts)
    unit = np.repeat(np.where(highest > 0, highest, 1), reduced.counts)
    elements = np.array(reduced.elements)
    nans, infs, nonzeros = (np.add.reduceat(each, starts) for each in (nan, inf, nonzero))
    squares = np.add.reduceat(np.square(norm * (high / unit)), starts)
    sums = np.add.reduceat(total * (high / unit), starts)
    columns = [
        highest * np.sqrt(squares),
        highest,
        highest * (sums / np.maximum(elements - nans - infs, 1)),
        1 - nonzeros / elements,
        nans.astype(int),
        infs.astype(int),
    ]
    ends = list(accumulate(reduced.values, initial=6 * rows))
    values = [tuple(here[a:b].tolist()) or None for a, b in pairwise(ends)]
    return list(zip(*(column.tolist() for column in columns), values, strict=True))
