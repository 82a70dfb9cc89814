"""Store the values that tensors have in a changed run, if they differ from those of the first run.

Such a value is called a shadow. A tensor with the same value in both runs has no shadow. Shadows
belong to storages: tensors that share a storage share its shadow, so views and in-place changes
need no special treatment. A tensor without a storage (sparse, nested, wrapper) has a shadow of its
own.

    shadows.get(tensor)         the value in the changed run, or None if it is the same
    shadows.set(tensor, other)  set the value in the changed run
    shadows.part(tensor)        give the tensor a shadow with its own value, before it is mutated
    shadows.maker(tensor)       the number of the operator that wrote to the tensor last
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ...graph.immutable import NamedTuple
from ..tensors.memory import is_dense, storage_id, storage_ref

DOUBLE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
DOUBLE |= dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float64)


class _Entry(NamedTuple):
    """The shadow of a storage: its values in the changed run of a comparison."""

    ref: Any  # weak reference to the storage
    dtype: torch.dtype  # dtype of the tensor for which the shadow was created
    flat: Tensor  # content of the whole storage in the changed run, in `dtype` or a wider dtype
    maker: int  # number of the operator that wrote to the storage last


class Shadows:
    """The values in a changed second run of the tensors that differ from the first run.

    Args:
        double: True to keep floating-point values in float64.
    """

    def __init__(self, *, double: bool = False) -> None:
        self.double = double
        self._entries: dict[int, _Entry] = {}
        self._others: Any = WeakIdKeyDictionary()
        self._purge_at = 32

    def __len__(self) -> int:
        return len(self._entries) + len(self._others)

    def get(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor's value in the changed run; None if it is equal to the first run's.

        For a DTensor, this is the value of the local tensor.
        """
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
        """Return id() of a tensor -> number of the last operator that wrote to it.

        Tensors without a shadow are left out.
        """
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
        """Return the shadow of a tensor's whole storage in the tensor's dtype.

        Returns None if the shadow cannot be viewed in this dtype.
        """
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
        """Return the number of the last operator that wrote to the tensor; -1 for an input."""
        tensor = _local(tensor)
        if not has_storage(tensor):
            found: tuple[Tensor, int] | None = self._others.get(tensor)
            return -1 if found is None else found[1]
        entry = self._entry(tensor)
        return -1 if entry is None else entry.maker

    def set(self, tensor: Tensor, other: Tensor, maker: int = -1) -> None:
        """Set the tensor's value in the changed run.

        Args:
            tensor: a tensor of the first run.
            other: its value in the changed run.
            maker: number of the operator that computed the value; -1 for an input.
        """
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
        shadow = self.get(tensor)
        if shadow is not None and shadow.shape == other.shape:
            shadow.copy_(other)

    def part(self, tensor: Tensor) -> None:
        """Before a tensor is mutated, create its shadow with the current value if it has none."""
        if not has_storage(tensor):
            if tensor not in self._others:
                self._others[tensor] = (self.widen(tensor.detach().clone()), -1)
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
        """Record that an operator has written to a tensor that differs in the changed run.

        Args:
            tensor: the tensor.
            maker: number of the operator.
        """
        if not has_storage(tensor):
            if tensor in self._others:
                self._others[tensor] = (self._others[tensor][0], maker)
        elif (entry := self._entry(tensor)) is not None:
            self._entries[storage_id(tensor)] = entry._replace(maker=maker)

    def forget(self) -> None:
        """Drop the changed run's values of all tensors."""
        self._entries.clear()
        self._others.clear()

    def widen(self, tensor: Tensor) -> Tensor:
        """Return the value in the changed run of a tensor without a shadow.

        This is the tensor itself, or a float64 copy if `double`.
        """
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
        """Drop the shadows of freed storages, whenever the number of shadows has doubled."""
        if len(self._entries) >= self._purge_at:
            with suppress(RuntimeError):
                self._entries = {k: e for k, e in self._entries.items() if not e.ref.expired()}
            self._purge_at = max(32, 2 * len(self._entries))


def has_storage(tensor: Tensor) -> bool:
    """Return True if the tensor is strided and has one storage of its own.

    A subclass with `__torch_dispatch__` counts as having none.
    """
    if is_dense(tensor):
        return True
    sees = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return not sees and tensor.layout is torch.strided and not tensor.is_nested


def _local(tensor: Tensor) -> Tensor:
    found: Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


def _fitting(tensor: Tensor, other: Tensor) -> Tensor | None:
    """Return the whole storage of `other` as a tensor, or None.

    Returns None unless both tensors have the same layout in storages of the same size.
    """
    if not has_storage(other) or other.is_conj() or tensor.is_conj() or other.is_neg():
        return None
    places = [(t.stride(), t.storage_offset(), t.shape) for t in (tensor, other)]
    sizes = [t.untyped_storage().nbytes() // t.element_size() for t in (tensor, other)]
    if places[0] != places[1] or sizes[0] != sizes[1]:
        return None
    flat = torch.empty(0, dtype=other.dtype, device=other.device)
    return flat.set_(other.untyped_storage(), 0, (sizes[1],), (1,))
