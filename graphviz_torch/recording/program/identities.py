"""Number tensors and their memory, so that rows of the log can name them.

A row keeps no tensor alive, and Python uses an id() again for another object. A number is never
used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from torch import Tensor

from ...internals.tensors.memory import storage_id, storage_ref
from ...internals.tensors.references import Ref

_MAX_KNOWN = 4096  # number of tensors, and of storages, that keep their number


class Identities:
    """The numbers of tensors and of storages."""

    def __init__(self) -> None:
        self._numbers = count(1)
        # By id() of a tensor, and by id of a storage: a weak reference, and the number.
        self._tensors: dict[int, tuple[Ref, int]] = {}
        self._storages: dict[int, tuple[Any, int]] = {}

    def find(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor; None if it has none so far."""
        known = self._tensors.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def find_ids(self, ids: Iterable[int]) -> dict[int, int]:
        """Return the id() of those live tensors that have a number, by number.

        Args:
            ids: id() of tensors.
        """
        found = [(self._tensors[key], key) for key in ids if key in self._tensors]
        return {number: key for (ref, number), key in found if ref() is not None}

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor."""
        number = self.find(tensor)
        if number is None:
            number = next(self._numbers)
            self._tensors[id(tensor)] = Ref(tensor), number
            if len(self._tensors) > _MAX_KNOWN:
                alive = [item for item in self._tensors.items() if item[1][0]() is not None]
                self._tensors = dict(alive[-_MAX_KNOWN // 2 :])
        return number

    def find_memory(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's storage; None if it has none so far."""
        known = self._storages.get(storage_id(tensor))
        return known[1] if known is not None and not known[0].expired() else None

    def memory_number(self, tensor: Tensor) -> int:
        """Return the number of a tensor's storage. Views of a tensor have the same one."""
        number = self.find_memory(tensor)
        if number is None:
            number = next(self._numbers)
            self._storages[storage_id(tensor)] = storage_ref(tensor), number
            if len(self._storages) > _MAX_KNOWN:
                alive = [item for item in self._storages.items() if not item[1][0].expired()]
                self._storages = dict(alive[-_MAX_KNOWN // 2 :])
        return number
