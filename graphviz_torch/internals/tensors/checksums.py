"""Compute checksums of tensors, which are equal on all ranks for equal bits.

A tensor's memory is read as 64-bit integers. The checksum is their sum with overflow, which does
not depend on the order of summation. Only tensors that do not start at an 8-byte boundary are
copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from ..functions import TensorBase
from ..probes import Probe, fetch, unobserved
from .memory import elements, may_be_read

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
