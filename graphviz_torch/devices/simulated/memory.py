"""Count the current and peak bytes of the tensors on each simulated device."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch

ALLOCATED: Counter[torch.device] = Counter()  # place -> bytes
PEAK: Counter[torch.device] = Counter()  # place -> bytes
_STORAGES: dict[int, Any] = {}  # id -> weak reference to a counted storage


def count(storage: torch.UntypedStorage, place: torch.device) -> None:
    """Count the bytes of a storage for a device until the storage is freed.

    Args:
        storage: the storage of the CPU tensor.
        place: the place of the simulated device.
    """
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
    """Set the peak of a device to its current number of bytes."""
    PEAK[place] = ALLOCATED[place]
