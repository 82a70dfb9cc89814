"""Compute statistics of gradients on devices other than the CPU.

Gradients are stacked into rows of equal width, and all rows are reduced together. Reducing many
gradients therefore runs as few operators as reducing one. A large gradient is reduced in blocks of
wide rows. The results of the rows are copied to the CPU later, and combined there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...graph.immutable import immutable
from ...internals.functions import TensorBase
from ...internals.tensors.memory import Elements
from .cpu import SMALL_GRADIENT, Row, end_to_end

WIDTH = 1024  # elements in a row, if several gradients are stacked
_WIDEST = 1 << 16  # maximum width of a row of a large gradient; float32 counts it exactly
_BLOCK = 1 << 24  # elements of one gradient that are reduced at a time: 64 MB of float32


@immutable
class Reduction:
    """The results of `reduce`, on the gradients' device."""

    numbers: Tensor  # 1-D: the seven numbers of all rows, then the values of small gradients
    counts: list[int]  # number of rows of each gradient
    elements: list[int]  # elements of each gradient, including zeros that a sparse one leaves out
    values: list[int]  # number of each gradient's values in `numbers`; 0 for large gradients


def reduce(gradients: Sequence[Elements], *, dense: bool = True) -> Reduction:
    """Reduce gradients of one dtype and device to seven numbers per row of elements.

    The seven numbers are:

    1. and 2. the variance and the mean of the elements, after they were divided by the row's
       largest absolute value, so that squares do not overflow
    3. the row's largest absolute value
    4. the number of non-zero elements
    5. the number of non-zero elements that are finite
    6. the number of non-zero elements that are not NaN
    7. the row's width

    Args:
        gradients: the readable elements of each gradient.
        dense: True if the elements of each gradient are complete and in row-major order.
    """
    flats = [end_to_end(gradient.tensors) for gradient in gradients]
    blocks = (
        [flats] if len(flats) > 1 else [[block] for block in TensorBase.split(flats[0], _BLOCK)]
    )
    rows = list(map(_numbers, blocks))
    values = [
        row.shape[0]
        if dense and row.shape[0] <= SMALL_GRADIENT and not torch.is_complex(gradient.tensors[0])
        else 0
        for row, gradient in zip(flats, gradients, strict=True)
    ]
    exact = torch.float32 if flats[0].device.type == "mps" else torch.float64
    numbers = TensorBase.to(torch.cat(rows, 1) if len(rows) > 1 else rows[0], exact)
    there = [TensorBase.view(numbers, -1)]
    there += [TensorBase.to(row, exact) for row, count in zip(flats, values, strict=True) if count]
    counts = [numbers.shape[1]]
    if len(flats) > 1:
        counts = [max(-(-row.shape[0] // WIDTH), 1) for row in flats]
    return Reduction(torch.cat(there), counts, [gradient.numel for gradient in gradients], values)


def _numbers(flats: Sequence[Tensor]) -> Tensor:
    """Return the seven numbers of each row as a tensor [7, rows], in few passes over the data.

    Args:
        flats: the elements of the gradients, as 1-D tensors.
    """
    if flats[0].dtype.itemsize < 2:  # 8-bit floats, of which one format cannot represent 0
        flats = [TensorBase.float(row) for row in flats]
    rows = _in_rows(flats)
    clean = torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    wide = torch.float32 if rows.dtype.itemsize < 4 else rows.dtype
    norm = partial(torch.linalg.vector_norm, dim=1, dtype=wide)
    high, nonzero, finite = norm(clean, math.inf), norm(rows, 0), norm(clean, 0)
    no_nan = norm(torch.nan_to_num(rows, nan=0.0), 0)
    unit = torch.where(high > 0, high, 1.0)[:, None]
    scaled = TensorBase.div_(clean, unit) if clean.dtype == wide else torch.div(clean, unit)
    variance, mean = torch.var_mean(scaled, 1, correction=0)
    size = torch.full_like(high, rows.shape[1])
    return torch.stack([variance, mean, high, nonzero, finite, no_nan, size])


def _in_rows(flats: Sequence[Tensor]) -> Tensor:
    """Stack gradients into rows, padded with zeros.

    A single gradient is reshaped without a copy, if its number of elements allows that.

    Args:
        flats: the elements of the gradients, as 1-D tensors.
    """
    if len(flats) == 1 and flats[0].shape[0]:
        width = math.gcd(flats[0].shape[0], _WIDEST)
        if width >= WIDTH:
            return TensorBase.view(flats[0], -1, width)
    parts = []
    end = TensorBase.new_zeros(flats[0], WIDTH)
    for row in flats:
        short = -row.shape[0] % WIDTH if row.shape[0] else WIDTH
        parts += [row, end[:short]] if short else [row]
    return TensorBase.view(parts[0] if len(parts) == 1 else torch.cat(parts), -1, WIDTH)


@np.errstate(all="ignore")  # a norm that overflows is not an error
def combine(reduced: Reduction, here: Any) -> list[Row]:
    """Return the statistics of each gradient of a reduction.

    Args:
        reduced: the reduction.
        here: `reduced.numbers`, copied to the CPU as a NumPy array.
    """
    rows = sum(reduced.counts)
    columns = here[: 7 * rows].reshape(7, rows).astype(np.float64)
    variance, mean, high, nonzero, finite, no_nan, size = columns
    square, total = size * (variance + mean * mean), size * mean
    nan, inf = nonzero - no_nan, no_nan - finite
    starts = list(accumulate(reduced.counts, initial=0))[:-1]
    highest = np.maximum.reduceat(high, starts)
    unit = np.repeat(np.where(highest > 0, highest, 1), reduced.counts)
    elements = np.array(reduced.elements)
    nans, infs, nonzeros = (np.add.reduceat(each, starts) for each in (nan, inf, nonzero))
    squares = np.add.reduceat(square * (high / unit) ** 2, starts)
    sums = np.add.reduceat(total * (high / unit), starts)
    found = [
        highest * np.sqrt(squares),
        highest,
        highest * (sums / np.maximum(elements - nans - infs, 1)),
        1 - nonzeros / elements,
        nans.astype(int),
        infs.astype(int),
    ]
    ends = list(accumulate(reduced.values, initial=7 * rows))
    values = [tuple(here[a:b].tolist()) or None for a, b in pairwise(ends)]
    return list(zip(*(column.tolist() for column in found), values, strict=True))
