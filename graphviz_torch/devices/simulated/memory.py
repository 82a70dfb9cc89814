"""Bytes of the tensors on each simulated device: now, and at most at once."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch

ALLOCATED: Counter[torch.device] = Counter()  # bytes by place
PEAK: Counter[torch.device] = Counter()
_STORAGES: dict[int, Any] = {}  # weak references, so that each storage counts once and until freed


def count(storage: torch.UntypedStorage, place: torch.device) -> None:
    """Count the memory of a tensor that was made on a device; views of it count once."""
    key, nbytes = id(storage), storage.nbytes()
    known = _STORAGES.get(key)
    if known is not None and known() is storage:
        return

    def on_free(_: Any) -> None:
        _STORAGES.pop(key, None)
        ALLOCATED[place] -= nbytes

    _STORAGES[key] = weakref.ref(storage, on_free)
    ALLOCATED[place] += nbytes
    PEAK[place] = max(PEAK[place], ALLOCATED[place])


def reset_peak(place: torch.device) -> None:
    """Forget the peak of a device: from here on it is what is allocated now."""
    PEAK[place] = ALLOCATED[place]
