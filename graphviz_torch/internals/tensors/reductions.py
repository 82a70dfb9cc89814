"""Compute norms and checksums of many tensors in a few calls.

Norms take less time than a small model's step. They use the private `torch._foreach_norm` (2.11 to
2.15), as `torch.nn.utils.get_total_norm` does.

Checksums are equal on all ranks for equal bits. A tensor's memory is read as 64-bit integers. The
checksum is their sum with overflow, which does not depend on the order of summation. Only tensors
that do not start at an 8-byte boundary are copied.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from ...graph import Extent
from ...graph.immutable import NamedTuple
from ..functions import TensorBase
from ..guards import no_autograd, no_functions, no_operators
from ..probes import Probe, fetch, unobserved
from .memory import elements, may_be_read, with_memory

_new: Any = tuple.__new__  # creates a Norm without a Python-level call


class Norm(NamedTuple):
    """A Euclidean norm, and the part of the tensor's elements that it covers ("" for all)."""

    norm: float
    extent: Extent = ""


def quick_norms(tensors: list[Tensor]) -> list[float] | None:
    """Return the Euclidean norms of ordinary tensors of one dtype on one device except CUDA.

    Returns None for other tensors. Reading from CUDA would wait for the device. In float32,
    elements below 1e-19 count as zero, because their squares underflow.
    """
    if {*map(type, tensors)} != {Tensor} or tensors[0].is_cuda:
        return None
    try:
        with no_functions(), no_operators(), no_autograd():
            found = torch._foreach_norm(tensors)
            norms: list[float] = (
                [TensorBase.item(found[0])]
                if len(found) == 1
                else TensorBase.tolist(torch.stack(found))
            )
    except RuntimeError:
        return None
    return norms


def is_finite(tensor: Tensor) -> bool:
    """Return True if a single call shows that an ordinary CPU tensor is finite.

    If the result is False, the tensor may still be finite: its sum may overflow, or a mode that
    would see the call is active. This is the fastest check of one tensor per step.
    """
    if type(tensor) is not Tensor or not tensor.is_cpu or tensor.requires_grad:
        return False
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return False
    try:
        short = TensorBase.dim(tensor) == 1  # for a vector, `dot` is faster than `sum`
        return math.isfinite(
            TensorBase.item(torch.dot(tensor, tensor) if short else torch.sum(tensor))
        )
    except (RuntimeError, TypeError):  # raised for complex tensors and dtypes without a sum
        return False


def have_equal_first_rows(tensors: list[Tensor], within: float) -> list[bool]:
    """Return for each tensor whether its first two rows are equal up to rounding.

    Args:
        tensors: tensors of one dtype on one device.
        within: largest norm of the difference, as a fraction of the norm of the first row.
    """
    firsts, seconds = ([torch.select(tensor, 0, i) for tensor in tensors] for i in (0, 1))
    norms = torch._foreach_norm([*torch._foreach_sub(firsts, seconds), *firsts])
    values = TensorBase.tolist(torch.stack(norms))
    pairs = zip(values[: len(tensors)], values[len(tensors) :], strict=True)
    return [apart <= within * size for apart, size in pairs]


# Tensors with at most this many elements are stacked, which takes less time than a call for each.
_MAX_STACKED_ELEMENTS = 512


def _norms(
    group: list[tuple[int, Tensor]], dtype: torch.dtype | None
) -> Iterator[tuple[list[tuple[int, Tensor]], Tensor]]:
    """Yield groups of the given tensors, each with a tensor of their norms.

    All tensors have one dtype and device.

    On the CPU, `_foreach_norm` makes one call per tensor. Small tensors of one shape are therefore
    stacked there. The norm of a row has the same bits as the norm of the tensor (2.13).
    """
    rest = group
    if group[0][1].is_cpu:
        alike: dict[Any, list[tuple[int, Tensor]]] = defaultdict(list)
        for pair in group:
            plain = pair[1]
            # A tensor that is not contiguous is not stacked: stacking would change the order in
            # which its elements are summed.
            alike[plain.shape if TensorBase.is_contiguous(plain) else None].append(pair)
        rest = []
        for shape, part in alike.items():
            if shape is not None and len(part) > 3 and 0 < shape.numel() <= _MAX_STACKED_ELEMENTS:
                rows = TensorBase.view(torch.stack([plain for _, plain in part]), len(part), -1)
                yield part, torch.linalg.vector_norm(rows, 2, dim=1, dtype=dtype)
            else:
                rest += part
    if rest:
        yield rest, torch.stack(torch._foreach_norm([plain for _, plain in rest], 2, dtype=dtype))


class Norms:
    """Euclidean norms of the current values of tensors, kept on their devices until `fetch`.

    Tensors that are not real, not strided or not readable are left out.
    """

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        self._found: list[tuple[list[int], Probe]] = []
        self._extents: dict[int, Extent] = {}
        groups: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = defaultdict(list)
        with unobserved():
            pairs = [
                (key, tensor)
                for key, tensor in tensors.items()
                if tensor.dtype.is_floating_point and tensor.layout is torch.strided
            ]
            if len(with_memory([tensor for _, tensor in pairs])) < len(pairs):
                given, pairs = pairs, []
                for key, tensor in given:
                    plains, _, self._extents[key] = elements(tensor)
                    pairs += [(key, plain) for plain in plains]
            for key, plain in pairs:
                groups[plain.device, plain.dtype].append((key, plain))
            for (_, dtype), group in groups.items():
                wide = torch.float32 if dtype.itemsize < 4 else None
                with suppress(RuntimeError):  # raised for dtypes without a norm
                    for part, norms in _norms(group, wide):
                        self._found.append(([key for key, _ in part], Probe(norms)))

    def fetch(self) -> dict[int, Norm]:
        """Return the norms of all tensors by key, after one copy from each device."""
        found: dict[int, float] = {}
        rows = fetch([probe for _, probe in self._found])
        for (keys, _), norms in zip(self._found, rows, strict=True):
            for key, norm in zip(keys, norms, strict=False):  # no norms if the device has failed
                found[key] = math.hypot(found[key], norm) if key in found else norm
        extents = map(self._extents.get, found, repeat(""))
        pairs = zip(found.values(), extents, strict=True)
        return dict(zip(found, map(_new, repeat(Norm), pairs), strict=True))


_WORD = 8  # bytes of a 64-bit integer
# 2 ** 64 divided by the golden ratio: multiplied by it, close sums become very different (Knuth).
_ODD = 0x9E3779B97F4A7C15
_NARROW = {4: torch.int32, 2: torch.int16, 1: torch.int8}


class Checksums:
    """Checksums of the current values of tensors, kept on their devices until `fetch`.

    Tensors without memory, or with gaps in their memory, are left out.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._found: list[tuple[str, Probe]] = []
        with unobserved():
            for key, tensor in tensors.items():
                for plain in filter(may_be_read, elements(tensor).tensors):
                    with suppress(RuntimeError):  # raised for dtypes and layouts without a view
                        for words in _words(TensorBase.detach(plain)):
                            total = torch.sum(words, dtype=words.dtype)
                            self._found.append((key, Probe(total.to(torch.int64))))

    def fetch(self) -> dict[str, int]:
        """Return the checksums of all tensors by key, after one copy from each device."""
        found: dict[str, int] = {}
        rows = fetch([total for _, total in self._found])
        for (key, _), values in zip(self._found, rows, strict=True):
            for value in values:  # there are no values if the device has failed
                found[key] = (31 * found.get(key, 0) + value) % (1 << 64)
        return {key: value * _ODD % (1 << 64) >> 32 for key, value in found.items()}


def _words(tensor: Tensor) -> list[Tensor]:
    """Return views of the tensor's memory as integers.

    The integers have 64 bits. The last bytes, if any, are viewed as narrower integers.
    """
    size, count = tensor.element_size(), tensor.numel()
    spans = ((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if not count or sum(spans) + 1 != count:
        return []
    flat = TensorBase.as_strided(tensor, (count,), (1,))
    narrow = _NARROW.get(size)
    if size >= _WORD:  # complex128 has two integers per element
        return [TensorBase.view(flat, torch.int64)]
    if narrow is None:
        return []
    if tensor.storage_offset() * size % _WORD:
        flat = TensorBase.clone(flat)
    whole = count - count % (_WORD // size)
    parts = [TensorBase.view(flat.narrow(0, 0, whole), torch.int64)] if whole else []
    return (
        [*parts, TensorBase.view(flat.narrow(0, whole, count - whole), narrow)]
        if whole < count
        else parts
    )
