"""The values that tensors have in the changed run, beside those that they have in the first.

Most tensors are the same in both, and have no shadow. One that differs has one: all tensors that
share its storage share the shadow's, so views and changes in place need no care. What has no
storage of its own (sparse, nested, wrappers) has a shadow for each tensor.

    shadows.of(tensor)          its values in the changed run; None: those that it has
    shadows.put(tensor, other)  let it have these
    shadows.part(tensor)        it is about to be changed: give it a shadow, equal so far
    shadows.maker(tensor)       the number of the operator that wrote to it last
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..tensors.memory import is_dense, storage_id, storage_ref

DOUBLE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
DOUBLE |= dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float64)


class _Entry(NamedTuple):
    """The shadow of a storage."""

    ref: Any  # of the storage
    dtype: torch.dtype  # of the tensors on it
    flat: Tensor  # all that the storage holds, as this dtype or wider
    maker: int


class Shadows:
    """The tensors that differ, with their other values.

    Args:
        double: floating-point shadows are in float64.
    """

    def __init__(self, *, double: bool = False) -> None:
        self.double = double
        self._entries: dict[int, _Entry] = {}
        self._others: Any = WeakIdKeyDictionary()
        self._purge_at = 32

    def __len__(self) -> int:
        return len(self._entries) + len(self._others)

    def of(self, tensor: Tensor) -> Tensor | None:
        """Its values in the changed run, if it has others there; of a DTensor the local ones."""
        tensor = _local(tensor)
        if not has_storage(tensor):
            found: tuple[Tensor, int] | None = self._others.get(tensor)
            return None if found is None else found[0]
        entry = self._entry(tensor)
        flat = None if entry is None else self._flat(tensor, entry)
        if flat is None:
            return None
        shadow = flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        return shadow.conj() if tensor.is_conj() else shadow

    def makers(self, tensors: Sequence[Tensor]) -> dict[int, int]:
        """By `id()`, of those that have a shadow: the number of the operator that wrote it last."""
        found = {}
        for each in tensors:
            tensor = _local(each)
            if not has_storage(tensor):
                if tensor in self._others:
                    found[id(each)] = self._others[tensor][1]
                continue
            entry = self._entry(tensor)
            if entry is not None and self._flat(tensor, entry) is not None:
                found[id(each)] = entry.maker
        return found

    def _flat(self, tensor: Tensor, entry: _Entry) -> Tensor | None:
        """All that the shadow of its storage holds, as the tensor's dtype; None: it has none."""
        if tensor.is_meta:
            return None
        flat, dtype = entry.flat, tensor.dtype
        if dtype is not entry.dtype:
            if dtype.is_complex and not entry.dtype.is_complex and flat.is_floating_point():
                flat = torch.view_as_complex(flat.view(-1, 2))
            elif entry.dtype.is_complex and dtype.is_floating_point:
                flat = torch.view_as_real(flat).view(-1)
            elif self.double:
                return None
            else:
                flat = flat.view(dtype)
        return flat

    def maker(self, tensor: Tensor) -> int:
        """The number of the operator that wrote to it last; -1: it came in."""
        tensor = _local(tensor)
        if not has_storage(tensor):
            found: tuple[Tensor, int] | None = self._others.get(tensor)
            return -1 if found is None else found[1]
        entry = self._entry(tensor)
        return -1 if entry is None else entry.maker

    def put(self, tensor: Tensor, other: Tensor, maker: int = -1) -> None:
        """Let a tensor have other values in the changed run."""
        if not has_storage(tensor):
            self._others[tensor] = (other, maker)
            return
        if self._entry(tensor) is None and (flat := _fitting(tensor, other)) is not None:
            ref = storage_ref(tensor)
            self._entries[storage_id(tensor)] = _Entry(ref, tensor.dtype, flat, maker)
            self._purge()
            return
        self.part(tensor)
        self.wrote(tensor, maker)
        shadow = self.of(tensor)
        if shadow is not None and shadow.shape == other.shape:
            shadow.copy_(other)

    def part(self, tensor: Tensor) -> None:
        """Give a tensor that has none a shadow, equal to it."""
        if not has_storage(tensor):
            if tensor not in self._others:
                self._others[tensor] = (self.widened(tensor.detach().clone()), -1)
            return
        if self._entry(tensor) is not None or tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        count = storage.nbytes() // tensor.element_size()
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        flat = flat.set_(storage, 0, (count,), (1,))
        copy = flat.to(DOUBLE[tensor.dtype]) if self._widens(tensor) else flat.clone()
        self._entries[storage_id(tensor)] = _Entry(storage_ref(tensor), tensor.dtype, copy, -1)
        self._purge()

    def wrote(self, tensor: Tensor, maker: int) -> None:
        """An operator has written to a tensor that has a shadow."""
        if not has_storage(tensor):
            if tensor in self._others:
                self._others[tensor] = (self._others[tensor][0], maker)
        elif (entry := self._entry(tensor)) is not None:
            self._entries[storage_id(tensor)] = entry._replace(maker=maker)

    def forget(self) -> None:
        """Nothing differs any more."""
        self._entries.clear()
        self._others.clear()

    def widened(self, tensor: Tensor) -> Tensor:
        """A tensor without shadow, as the changed run takes it."""
        return tensor.to(DOUBLE[tensor.dtype]) if self._widens(tensor) else tensor

    def _widens(self, tensor: Tensor) -> bool:
        return self.double and tensor.dtype in DOUBLE

    def _entry(self, tensor: Tensor) -> _Entry | None:
        entry = self._entries.get(storage_id(tensor))
        if entry is not None and entry.ref.expired():
            del self._entries[storage_id(tensor)]
            return None
        return entry

    def _purge(self) -> None:
        """Let the shadows of storages go that are gone; now and then."""
        if len(self._entries) >= self._purge_at:
            with suppress(RuntimeError):
                self._entries = {k: e for k, e in self._entries.items() if not e.ref.expired()}
            self._purge_at = max(32, 2 * len(self._entries))


def has_storage(tensor: Tensor) -> bool:
    """Has it one storage: is it dense, or of a subclass that sees no operators, and is dense."""
    if is_dense(tensor):
        return True
    sees = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return not sees and tensor.layout is torch.strided and not tensor.is_nested


def _local(tensor: Tensor) -> Tensor:
    found: Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


def _fitting(tensor: Tensor, other: Tensor) -> Tensor | None:
    """All that lies in the storage of `other`, if it lies there as the tensor does in its own."""
    if not has_storage(other) or other.is_conj() or tensor.is_conj() or other.is_neg():
        return None
    places = [(t.stride(), t.storage_offset(), t.shape) for t in (tensor, other)]
    sizes = [t.untyped_storage().nbytes() // t.element_size() for t in (tensor, other)]
    if places[0] != places[1] or sizes[0] != sizes[1]:
        return None
    flat = torch.empty(0, dtype=other.dtype, device=other.device)
    return flat.set_(other.untyped_storage(), 0, (sizes[1],), (1,))
