"""Compute statistics of gradients on the CPU.

Small gradients are concatenated and reduced together. A large gradient is read once, in blocks that
fit into the cache.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import accumulate, compress, islice, repeat
from operator import not_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...internals.functions import TensorBase, foreach_norm

SMALL_GRADIENT = 16  # the values of gradients with at most this many elements are recorded, too
_BLOCK = 1 << 19  # elements read at a time: 2 MB of float32
_LANES = 128  # number of flags that are summed in one uint8; must be below 256

_MAX_STORAGES = 1024  # largest number of tensors in one reduction
_SHORT = 512  # tensors with at most this many elements are concatenated, then reduced together
_PLAIN = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))

# norm, max_abs, mean, zero_fraction, nan, inf
Numbers = tuple[float, float, float, float, int, int]
# `Numbers`, and the values of a small gradient.
Row = tuple[float, float, float, float, int, int, tuple[Any, ...] | None]
# Key that is equal for dense tensors with the same elements: address, count, negative bit.
_Key = tuple[int, int, bool]


class _Buffers(threading.local):
    """Buffers of a few megabytes for each thread.

    The buffers are reused, because allocating them would take longer than a reduction.
    """

    def __init__(self) -> None:
        self._rows = {name: torch.empty(0, dtype=torch.uint8) for name in ("row", "beside")}

    def row(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialized 1-D tensor in the buffer of this name, enlarged if needed.

        Args:
            name: name of the buffer.
            elements: number of elements.
            dtype: dtype of the elements.
        """
        size = elements * dtype.itemsize
        if self._rows[name].shape[0] < size:
            self._rows[name] = torch.empty(size, dtype=torch.uint8)
        return TensorBase.view(torch.narrow(self._rows[name], 0, 0, size), dtype)


_buffers = _Buffers()


def flat(gradient: Tensor) -> Tensor:
    """Return the elements of a dense tensor as a contiguous 1-D tensor.

    Complex elements are replaced by their absolute values. The elements of a small tensor are in
    row-major order, because its values are recorded. The elements of a larger tensor without gaps
    are in memory order.
    """
    row = TensorBase.detach(gradient)
    row = row if TensorBase.is_contiguous(row) else _in_order(row)
    row = TensorBase.view(torch.resolve_neg(row), -1)
    return torch.abs(row) if torch.is_complex(row) else row


def without_repeats(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a dense tensor without the repetitions made by `expand`, and their number.

    >>> [row, times] = without_repeats(torch.ones(3, 1).expand(3, 5))
    >>> tuple(row.shape), times
    ((3, 1), 5)
    """
    times = 1
    for dim, stride in enumerate(TensorBase.stride(tensor)):
        if not stride and tensor.shape[dim] > 1:
            times *= tensor.shape[dim]
            tensor = torch.narrow(tensor, dim, 0, 1)
    return tensor, times


def repeat_row(row: Row, times: int) -> Row:
    """Return the statistics of a gradient that repeats the elements of another gradient.

    Args:
        row: the statistics of the other gradient.
        times: the number of repetitions.
    """
    if times == 1:
        return row
    norm, high, mean, zeros, nan, inf, _ = row
    return norm * math.sqrt(times), high, mean, zeros, nan * times, inf * times, None


def end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of several dense tensors, concatenated into a 1-D tensor."""
    rows = list(map(flat, tensors))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


@lru_cache(maxsize=1024)
def _outermost_first(strides: tuple[int, ...]) -> list[int]:
    return sorted(range(len(strides)), key=strides.__getitem__, reverse=True)


def has_finite_sum(tensor: Tensor) -> bool:
    """Return True if the sum of a dense tensor is finite, which implies that each element is."""
    return math.isfinite(abs(TensorBase.item(TensorBase.sum(tensor))))


def on_cpu(row: Tensor, elements: int) -> Numbers:
    """Return the statistics (norm, mean and the like) of one gradient in CPU memory.

    Args:
        row: the gradient's elements, 1-D.
        elements: number of elements, including zeros that a sparse gradient leaves out.
    """
    squares = high = total = 0.0
    nonzero = 0
    for block in TensorBase.split(row, _BLOCK) if row.shape[0] else ():
        block = _wide(block)
        squares += TensorBase.item(torch.dot(block, block))
        if not math.isfinite(squares):
            return _robust_numbers(_blocks(row), elements)
        most, least = TensorBase.item(torch.amax(block)), TensorBase.item(torch.amin(block))
        high = max(high, most, -least)
        total += TensorBase.item(torch.sum(block))
        nonzero += _nonzero(block)
    if high and squares < _min_squares(row.dtype):
        return _robust_numbers(_blocks(row), elements)
    return math.sqrt(squares), high, total / elements, 1 - nonzero / elements, 0, 0


def _nonzero(block: Tensor) -> int:
    """Return the number of non-zero elements of a block, faster than `count_nonzero`."""
    size = block.shape[0]
    flags = _buffers.row("beside", -(-size // _LANES) * _LANES, torch.bool)
    TensorBase.copy_(torch.narrow(flags, 0, 0, size), block)
    TensorBase.zero_(torch.narrow(flags, 0, size, flags.shape[0] - size))
    lanes = TensorBase.view(TensorBase.view(flags, torch.uint8), _LANES, -1)
    return int(TensorBase.item(torch.sum(torch.sum(lanes, 0, dtype=torch.uint8))))


class Joined:
    """Dense CPU gradients, concatenated and reduced together.

    Many gradients are views of the same memory, because the backward of a view or transpose passes
    on the gradient that it received. Elements at the same address are read once.

    Args:
        groups: gradients grouped by shape. All gradients have the same real dtype, which is 16-bit
            or known to NumPy. They have fewer than 2 ** 24 elements in total. None is empty.
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self._keys: list[_Key] = []  # one for each gradient, in the order of the groups
        memories: dict[_Key, Tensor] = {}
        blocks: list[list[Tensor]] = []
        rest: list[tuple[_Key, Tensor]] = []
        for group in groups:
            rows, whole = list(group), list(map(TensorBase.is_contiguous, group))
            if not all(whole):
                rows = [row if c else _in_order(row) for row, c in zip(rows, whole, strict=True)]
            lengths, negative = map(TensorBase.numel, rows), map(TensorBase.is_neg, rows)
            keys = list(zip(map(TensorBase.data_ptr, rows), lengths, negative, strict=True))
            self._keys += keys
            pairs = list(zip(keys, rows, strict=True))
            if not _is_block(group):
                rest += pairs
                continue
            if not all(whole):  # `_in_order` may have changed the shape of these gradients
                rest += compress(pairs, map(not_, whole))
                pairs = list(compress(pairs, whole))
            block = {key: row for key, row in pairs if key not in memories}
            blocks.append(list(block.values()))
            memories |= block
        others = {key: row for key, row in rest if key not in memories}
        memories |= others
        self._at = {key: i for i, key in enumerate(memories)}
        self._lengths = [length for _, length, _ in memories]
        self._row = _concatenate(blocks, others.values())

    def numbers(self) -> list[Row]:
        """Return the statistics, and the values of small gradients, in the order of the groups."""
        lengths, dtype = self._lengths, self._row.dtype
        ends = list(accumulate(lengths, initial=0))
        starts, count = np.array(ends[:-1]), np.array(lengths)
        spare = _buffers.row("beside", ends[-1], dtype)
        row, beside = TensorBase.numpy(self._row), TensorBase.numpy(spare)
        with np.errstate(all="ignore"):  # results with overflow or NaN are corrected below
            squares = np.add.reduceat(np.multiply(row, row, out=beside), starts)
            no_zeros = beside.min() > 0
            high = np.maximum.reduceat(row, starts)
            high = np.abs(np.maximum(high, -np.minimum.reduceat(row, starts)))
            mean = np.add.reduceat(row, starts) / count
            zeros = np.zeros(len(count))
            if not no_zeros:  # there are zeros or NaN, or squares that underflow
                torch.eq(self._row, 0, out=spare)
                zeros = np.add.reduceat(beside, starts) / count
        columns: list[list[Any]] = [c.tolist() for c in (np.sqrt(squares), high, mean, zeros)]
        values: list[tuple[Any, ...] | None] = [None] * len(lengths)
        small = np.flatnonzero(count <= SMALL_GRADIENT)
        sizes = count[small]
        firsts = starts[small] - np.cumsum(sizes) + sizes
        few = iter(row[np.repeat(firsts, sizes) + np.arange(sizes.sum())].tolist())
        for i in small.tolist():
            values[i] = tuple(islice(few, lengths[i]))
        rows: list[Row] = list(zip(*columns, repeat(0), repeat(0), values, strict=False))
        for i in np.flatnonzero(
            ~np.isfinite(squares) | ((squares < _min_squares(dtype)) & (high > 0))
        ):
            rows[i] = (*_robust_numbers([row[ends[i] : ends[i + 1]]], lengths[i]), values[i])
        return list(map(rows.__getitem__, map(self._at.__getitem__, self._keys)))


def all_finite(groups: Sequence[Sequence[Tensor]]) -> bool:
    """Return True if all elements of tensors are certainly finite, because their norm is finite.

    Args:
        groups: the tensors, grouped as for `Joined`.
    """
    blocks = [group for group in groups if _is_block(group)]
    row = _concatenate(blocks, [t for group in groups if not _is_block(group) for t in group])
    return math.isfinite(TensorBase.item(torch.dot(row, row)))


def each_finite(tensors: Sequence[Tensor]) -> bool:
    """Return True if all elements of floating-point tensors are certainly finite.

    Many tensors of the same dtype are reduced together. The reduction may overflow, so False does
    not prove that there are NaN or Inf.
    """
    # dtype -> (address, number of elements) -> one tensor with these elements.
    alike: dict[Any, dict[tuple[int, int], Tensor]] = defaultdict(dict)
    memories = zip(map(TensorBase.data_ptr, tensors), map(TensorBase.numel, tensors), strict=True)
    for tensor, memory in zip(tensors, memories, strict=True):
        alike[tensor.dtype][memory] = tensor
    for dtype, one in alike.items():
        distinct = list(one.values())
        if dtype in _PLAIN:
            small = [tensor for (_, elements), tensor in one.items() if elements <= _SHORT]
            distinct = [tensor for (_, elements), tensor in one.items() if elements > _SHORT]
            for start in range(0, len(small), _MAX_STORAGES):
                shapes: dict[Any, list[Tensor]] = defaultdict(list)
                for tensor in small[start : start + _MAX_STORAGES]:
                    shapes[tensor.shape].append(tensor)
                if not all_finite(list(shapes.values())):
                    return False
        for start in range(0, len(distinct), _MAX_STORAGES):
            norms = foreach_norm(distinct[start : start + _MAX_STORAGES])
            if not all(map(math.isfinite, map(TensorBase.item, norms))):
                return False
    return True


def _is_block(group: Sequence[Tensor]) -> bool:
    """Return True if tensors of equal shape are concatenated by a separate call.

    A separate call is faster for more than three tensors with at least two dimensions.
    """
    return len(group) > 3 and TensorBase.dim(group[0]) > 1


def _concatenate(blocks: Sequence[Sequence[Tensor]], rest: Iterable[Tensor]) -> Tensor:
    """Return the concatenated elements of tensors, in a buffer that the next call overwrites.

    Args:
        blocks: groups of tensors. The tensors of a group have the same shape, of two or more
            dimensions.
        rest: the other tensors, whose elements follow.
    """
    flats = [row if TensorBase.dim(row) == 1 else torch.ravel(row) for row in rest]
    sizes = [sum(map(TensorBase.numel, block)) for block in (*blocks, flats)]
    dtype = next(t.dtype for part in (*blocks, flats) for t in part)
    row = _buffers.row("row", sum(sizes), torch.float32 if dtype.itemsize < 4 else dtype)
    for part, place in zip((*blocks, flats), TensorBase.split(row, tuple(sizes)), strict=True):
        if not part:
            continue
        try:
            torch.cat(list(part), out=TensorBase.view(place, -1, *part[0].shape[1:]))
        except RuntimeError:  # the shapes differ, because a hook of the program changed a gradient
            torch.cat(list(map(torch.ravel, part)), out=place)
    return row


def _in_order(gradient: Tensor) -> Tensor:
    """Return a contiguous tensor with the elements of a dense tensor.

    The elements of a small tensor are in row-major order, because its values are recorded. The
    elements of a larger tensor without gaps are in memory order.
    """
    if TensorBase.numel(gradient) > SMALL_GRADIENT:
        gradient = torch.permute(gradient, _outermost_first(TensorBase.stride(gradient)))
    return TensorBase.contiguous(gradient)


def _blocks(row: Tensor) -> Iterable[Any]:
    return (TensorBase.numpy(_wide(block)) for block in TensorBase.split(row, _BLOCK))


@np.errstate(all="ignore")  # a norm that overflows is not an error
def _robust_numbers(blocks: Iterable[Any], elements: int) -> Numbers:
    """Return the statistics of a gradient with non-finite, very large or very small elements.

    Args:
        blocks: the gradient's elements, as NumPy arrays.
        elements: number of elements, including zeros that a sparse gradient leaves out.
    """
    norm = high = 0.0
    total = np.longdouble(0)
    nonzero = nan = inf = 0
    for block in blocks:
        wide = block.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        highest = float(np.abs(finite).max(initial=0))
        if highest:
            norm = math.hypot(norm, highest * float(np.linalg.norm(finite / highest)))
        high = max(high, highest)
        total += finite.sum(dtype=np.longdouble)
        nonzero += int(np.count_nonzero(wide))
        nan += int(np.isnan(wide).sum())
        inf += len(wide) - len(finite)
    inf -= nan
    mean = float(total / max(elements - nan - inf, 1))
    return norm, high, mean, 1 - nonzero / elements, nan, inf


def _wide(rows: Tensor) -> Tensor:
    return TensorBase.float(rows) if rows.dtype.itemsize < 4 else rows


@cache
def _min_squares(dtype: torch.dtype) -> float:
    """Return the smallest sum of squares in which the underflow of single squares is negligible."""
    info = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype)
    return info.tiny / info.eps
