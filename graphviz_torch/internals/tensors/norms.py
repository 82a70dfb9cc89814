"""The norms of many tensors by one call: a call for each costs more than a small model's step.

Private: `torch._foreach_norm` (2.11 to 2.15), which `torch.nn.utils.get_total_norm` calls too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...graph import Extent
from ..functions import TensorBase
from ..guards import no_autograd, no_functions, no_operators
from ..hooks.dispatch import unseen
from ..hooks.modes import unseen_calls, unseen_operators
from .memory import elements, with_memory

_new: Any = tuple.__new__  # a Norm from a row of its fields, without a call of Python's


class Norm(NamedTuple):
    """A Euclidean norm, and what of its tensor it is the norm of."""

    norm: float
    extent: Extent = ""


def quick_norms(tensors: list[Tensor]) -> list[float] | None:
    """The Euclidean norms of plain tensors of one dtype and device; None where they are others.

    None, too, on CUDA, where the program would have to wait for them.

    Numbers below 1e-19 count as zero in float32: their squares do.
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
    """Is a plain tensor on the CPU surely finite, by one call. False, too, where that is not known.

    Asked of one tensor in each step, where no mode would see the call.
    """
    if type(tensor) is not Tensor or not tensor.is_cpu or tensor.requires_grad:
        return False
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return False
    try:
        short = TensorBase.dim(tensor) == 1  # the quicker of the two
        return math.isfinite(
            TensorBase.item(torch.dot(tensor, tensor) if short else torch.sum(tensor))
        )
    except (RuntimeError, TypeError):  # of a kind that has no sum, or a complex one
        return False


def first_rows_alike(tensors: list[Tensor], within: float) -> list[bool]:
    """Of tensors of one dtype and device: are the first two rows the same, but for rounding.

    Args:
        within: by so much they may differ, of the norm of the first.
    """
    firsts, seconds = ([torch.select(tensor, 0, i) for tensor in tensors] for i in (0, 1))
    norms = torch._foreach_norm([*torch._foreach_sub(firsts, seconds), *firsts])
    values = TensorBase.tolist(torch.stack(norms))
    pairs = zip(values[: len(tensors)], values[len(tensors) :], strict=True)
    return [apart <= within * size for apart, size in pairs]


_SMALL = 512  # elements: to lay side by side what has no more costs less than a call for each


def _norms(
    group: list[tuple[int, Tensor]], dtype: torch.dtype | None
) -> Iterator[tuple[list[tuple[int, Tensor]], Tensor]]:
    """The norms of tensors of one dtype and device, as rows of a few calls, each with its tensors.

    On the CPU PyTorch makes a call for each tensor of `_foreach_norm`. There the small ones of one
    shape lie side by side: the norm of a row is that of the tensor, bit by bit (2.13).
    """
    rest = group
    if group[0][1].is_cpu:
        alike: dict[Any, list[tuple[int, Tensor]]] = defaultdict(list)
        for pair in group:
            plain = pair[1]
            # Of others the elements are added up in the order of memory.
            alike[plain.shape if TensorBase.is_contiguous(plain) else None].append(pair)
        rest = []
        for shape, part in alike.items():
            if shape is not None and len(part) > 3 and 0 < shape.numel() <= _SMALL:
                rows = TensorBase.view(torch.stack([plain for _, plain in part]), len(part), -1)
                yield part, torch.linalg.vector_norm(rows, 2, dim=1, dtype=dtype)
            else:
                rest += part
    if rest:
        yield rest, torch.stack(torch._foreach_norm([plain for _, plain in rest], 2, dtype=dtype))


class Norms:
    """The Euclidean norms of tensors as they are now, on their devices until they are asked for.

    Left out is what has no real numbers that can be read, and what is not strided.
    """

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        self._found: list[tuple[list[int], Tensor]] = []
        self._extents: dict[int, Extent] = {}
        groups: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = defaultdict(list)
        with unseen_calls(), unseen(), unseen_operators(), no_autograd():
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
                with suppress(RuntimeError):  # of a kind that has no norm
                    for part, norms in _norms(group, wide):
                        self._found.append(([key for key, _ in part], norms))

    def fetch(self) -> dict[int, Norm]:
        """All of them, by the keys that they were given with: one copy from each device."""
        found: dict[int, float] = {}
        with unseen_calls(), unseen(), unseen_operators():
            for keys, norms in self._found:
                with suppress(RuntimeError):  # a device that has failed tells no value
                    for key, norm in zip(keys, TensorBase.tolist(norms), strict=True):
                        found[key] = math.hypot(found[key], norm) if key in found else norm
        extents = map(self._extents.get, found, repeat(""))
        rows = zip(found.values(), extents, strict=True)
        return dict(zip(found, map(_new, repeat(Norm), rows), strict=True))
