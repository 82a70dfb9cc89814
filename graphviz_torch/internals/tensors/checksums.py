"""Checksums of tensors: equal bits have equal ones, on every rank and in any order of adding.

A sum of the memory as whole numbers of 64 bits, which wraps around; the order of these does not
matter. No copy is made, but of a part of a storage that does not begin at such a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from ..functions import TensorBase
from ..guards import no_autograd
from ..hooks.dispatch import unseen
from ..hooks.modes import unseen_calls, unseen_operators
from .memory import elements, may_be_read

_WORD = 8  # bytes
_ODD = 0x9E3779B97F4A7C15  # 2 ** 64 / the golden ratio: sums that lie close are told apart (Knuth)
_NARROW = {4: torch.int32, 2: torch.int16, 1: torch.int8}


class Checksums:
    """The checksums of tensors as they are now, on their devices until they are asked for.

    Left out is what has no memory, and what does not lie in it without gaps.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._found: dict[torch.device, list[tuple[str, Tensor]]] = defaultdict(list)
        with unseen_calls(), unseen(), unseen_operators(), no_autograd():
            for key, tensor in tensors.items():
                for plain in filter(may_be_read, elements(tensor).tensors):
                    with suppress(RuntimeError):  # of a kind that has no such view
                        for words in _words(TensorBase.detach(plain)):
                            total = torch.sum(words, dtype=words.dtype)
                            self._found[total.device].append((key, total.to(torch.int64)))

    def fetch(self) -> dict[str, int]:
        """All of them, by the keys that they were given with: one copy from each device."""
        found: dict[str, int] = {}
        with unseen_calls(), unseen(), unseen_operators(), no_autograd():
            for sums in self._found.values():
                with suppress(RuntimeError):  # a device that has failed tells no value
                    values = TensorBase.tolist(torch.stack([total for _, total in sums]))
                    for (key, _), value in zip(sums, values, strict=True):
                        found[key] = (31 * found.get(key, 0) + value) % (1 << 64)
        return {key: value * _ODD % (1 << 64) >> 32 for key, value in found.items()}


def _words(tensor: Tensor) -> list[Tensor]:
    """Its memory as whole numbers: wide ones, and the few elements behind them."""
    size, count = tensor.element_size(), tensor.numel()
    spans = ((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if not count or sum(spans) + 1 != count:
        return []
    flat = TensorBase.as_strided(tensor, (count,), (1,))
    narrow = _NARROW.get(size)
    if size >= _WORD:  # complex128 has two
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
