"""The norms of many tensors by one call: a call for each costs more than a small model's step.

Private: `torch._foreach_norm` (2.11 to 2.15), which `torch.nn.utils.get_total_norm` calls too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from ..guards import no_autograd
from ..hooks.dispatch import unseen
from ..hooks.modes import unseen_calls, unseen_operators
from .storage import is_plain


class Norms:
    """The Euclidean norms of tensors as they are now, on their devices until they are asked for.

    Left out is what is not a dense tensor of real numbers, and what has no memory.
    """

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        self._found: list[tuple[list[int], Tensor]] = []
        groups: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = {}
        with unseen_calls(), unseen(), unseen_operators(), no_autograd():
            for key, tensor in tensors.items():
                tensor = tensor.detach()  # of a Parameter a plain tensor
                if is_plain(tensor) and tensor.is_floating_point() and not _is_freed(tensor):
                    groups.setdefault((tensor.device, tensor.dtype), {})[key] = tensor
            for (_, dtype), group in groups.items():
                wide = torch.float32 if dtype.itemsize < 4 else None
                with suppress(RuntimeError):  # of a kind that has no norm
                    norms = torch._foreach_norm(list(group.values()), 2, dtype=wide)
                    self._found.append((list(group), torch.stack(norms)))

    def fetch(self) -> dict[int, float]:
        """All of them, by the keys that they were given with: one copy from each device."""
        found: dict[int, float] = {}
        with unseen_calls(), unseen(), unseen_operators():
            for keys, norms in self._found:
                with suppress(RuntimeError):  # a device that has failed tells no value
                    found |= zip(keys, norms.tolist(), strict=True)
        return found


def _is_freed(tensor: Tensor) -> bool:
    """Was its memory taken from under it, as FSDP does: to read it would end the process."""
    return tensor.numel() > 0 and not tensor.untyped_storage().nbytes()
