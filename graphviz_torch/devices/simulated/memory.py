"""Memory of the tensors on each simulated device: current and peak bytes."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch

ALLOCATED: Counter[torch.device] = Counter()  # place -> bytes
PEAK: Counter[torch.device] = Counter()  # place -> bytes
_STORAGES: dict[int, Any] = {}  # id -> weak reference, so that a storage is counted once


def count(storage: torch.UntypedStorage, place: torch.device) -> None:
    """Count the storage of a new tensor on a device, once for all views, until it is freed."""
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
    """Set the peak of a device to the bytes that are allocated now."""
    PEAK[place] = ALLOCATED[place]
