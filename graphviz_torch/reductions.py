"""Norm, extremes, mean and zeros of gradients: what `GradientStats` says, as numbers.

On the CPU a gradient is read in blocks that stay in the cache, once from memory, and the numbers
are there at once. On another device everything is reduced there, into a table of a few numbers that
can be fetched later.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

SMALL = 16  # elements: the values of a gradient this small are kept
COLUMNS = 6  # norm, max_abs, mean, zero_fraction, nan, inf
_BLOCK = 1 << 19  # elements read at a time: 2 MB of float32
_LANES = 128  # bytes that are added up in a byte: less than 256

# norm, max_abs, mean, zero_fraction, nan, inf
Numbers = tuple[float, float, float, float, int, int]


class Scratch:
    """Memory to reduce in: fresh memory for each gradient would cost more than to reduce it."""

    def __init__(self) -> None:
        self._rows: dict[torch.dtype, tuple[Tensor, Tensor]] = {}
        self._flags: Tensor | None = None

    def rows(self, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """CPU gradients of equal shape, a row for each, and as much memory beside them.

        All of them together are at most `_BLOCK` elements.
        """
        first = gradients[0]
        count, elements = len(gradients), first.numel()
        memory = self._rows.get(first.dtype)
        if memory is None:
            memory = self._rows[first.dtype] = first.new_empty(_BLOCK), first.new_empty(_BLOCK)
        beside = memory[1][: count * elements].view(count, elements)
        if count == 1:
            return first.detach().reshape(1, elements), beside
        rows = memory[0][: count * elements]
        torch.stack(gradients, out=rows.view(count, *first.shape))
        return rows.view(count, elements), beside

    def nonzero(self, block: Tensor) -> int:
        """How many elements of a block are not zero: three times as fast as `count_nonzero`."""
        if self._flags is None:
            self._flags = torch.empty(_BLOCK, dtype=torch.bool)
        flags = self._flags[: -(-len(block) // _LANES) * _LANES]
        flags[: len(block)].copy_(block)
        if len(block) < len(flags):
            flags[len(block) :].zero_()
        return int(flags.view(torch.uint8).view(_LANES, -1).sum(0, dtype=torch.uint8).sum())


def flat(gradient: Tensor) -> Tensor:
    """The elements of one gradient; zeros that a sparse layout omits are left out."""
    if gradient.is_nested:
        row = gradient.values().detach().reshape(-1)
    elif gradient.layout == torch.strided:
        turned = gradient.dim() == 2 and gradient.numel() > SMALL and not gradient.is_contiguous()
        # Where the values are not kept their order does not matter.
        row = (gradient.t() if turned else gradient).detach().reshape(-1)
    else:
        values = gradient.coalesce() if gradient.layout == torch.sparse_coo else gradient
        row = values.values().reshape(-1)
    return row.abs() if row.is_complex() else row


def on_cpu(row: Tensor, elements: int, scratch: Scratch) -> Numbers:
    """The numbers of one gradient; `elements` counts those that are left out of `row` too."""
    squares = high = total = 0.0
    nonzero = 0
    for block in torch.split(row, _BLOCK) if len(row) else ():
        block = _wide(block)
        squares += float(torch.dot(block, block))
        if not math.isfinite(squares):
            return numbers(table(row[None], elements)[0].tolist())
        high = max(high, float(block.amax()), -float(block.amin()))
        total += float(block.sum())
        nonzero += scratch.nonzero(block)
    if high and squares < _least(row.dtype):
        return numbers(table(row[None], elements)[0].tolist())
    return math.sqrt(squares), high, total / elements, 1 - nonzero / elements, 0, 0


def rows_on_cpu(rows: Tensor, beside: Tensor) -> list[Numbers]:
    """The numbers of each of several small gradients, a row each."""
    rows = _wide(rows)
    norms = torch.linalg.vector_norm(rows, dim=1).tolist()
    elements = rows.shape[1]
    high, low = rows.amax(1).tolist(), rows.amin(1).tolist()
    least = math.sqrt(_least(rows.dtype))
    lost = min(norms) < least and any(
        norm < least and (above or below)
        for norm, above, below in zip(norms, high, low, strict=True)
    )
    if lost or not math.isfinite(sum(norms)):
        return list(map(numbers, table(rows, elements).tolist()))
    # Five times as fast as count_nonzero along a dimension; rows are short, so the sum is exact.
    nonzero = torch.ne(rows, 0, out=_wide(beside)).sum(1).tolist()
    return [
        (norm, max(above, -below), total / elements, 1 - count / elements, 0, 0)
        for norm, above, below, total, count in zip(
            norms, high, low, rows.sum(1).tolist(), nonzero, strict=True
        )
    ]


def table(rows: Tensor, elements: int) -> Tensor:
    """The numbers of each row, on the device of `rows`; in float64 where there is that."""
    wide = rows.double() if rows.device.type != "mps" else rows
    finite = torch.isfinite(wide)
    clean = torch.where(finite, wide, 0.0)
    nan = torch.isnan(wide).sum(1)
    inf = torch.isinf(wide).sum(1)
    high = clean.abs().amax(1)
    unit = torch.where(high > 0, high, 1.0)  # so that no square is too large or too small
    columns = [
        unit * torch.linalg.vector_norm(clean / unit[:, None], dim=1),
        high,
        clean.sum(1) / (elements - nan - inf).clamp(min=1),
        1 - torch.count_nonzero(wide, dim=1) / elements,
        nan,
        inf,
    ]
    return torch.stack([column.to(wide.dtype) for column in columns], dim=1)


def _wide(rows: Tensor) -> Tensor:
    return rows.float() if rows.dtype.itemsize < 4 else rows


@cache
def _least(dtype: torch.dtype) -> float:
    """A sum of squares below this has lost digits, for the squares are too small to be held."""
    info = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype)
    return info.tiny / info.eps


def numbers(row: list[float]) -> Numbers:
    """A row of `table`, brought over."""
    norm, max_abs, mean, zero_fraction, nan, inf = row
    return norm, max_abs, mean, zero_fraction, int(nan), int(inf)
