"""Recognising a tensor when a later call takes it, without keeping it alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..internals.dynamo import uncompiled
from ..internals.pytree import tensors


class Trail(Protocol):
    """What wants to know where a tensor goes."""

    def taken(self, func: Any, start: int, end: int, result: Any) -> None:
        """A call took the tensor, made the nodes start <= n < end, and returned `result`."""

    def freed(self) -> None:
        """The tensor is gone."""


class Following:
    """Tensors that are followed, by identity."""

    def __init__(self) -> None:
        self.trails: dict[int, tuple[weakref.ref[Tensor], list[Trail]]] = {}

    def add(self, tensor: Tensor, trail: Trail) -> bool:
        """Follow a tensor for `trail`; False if that was so already."""
        known = self.trails.get(id(tensor))
        if known is not None and known[0]() is tensor:
            if trail in known[1]:
                return False
            known[1].append(trail)
            return True
        key, trails = id(tensor), [trail]
        ref = weakref.ref(tensor, lambda ref: self._freed(key, ref))
        self.trails[key] = (ref, trails)
        return True

    def drop(self, trails: Iterable[Trail]) -> None:
        """Follow nothing for these trails any more."""
        gone = {id(trail) for trail in trails}
        for key, (_, kept) in list(self.trails.items()):
            kept[:] = [trail for trail in kept if id(trail) not in gone]
            if not kept:
                del self.trails[key]

    @uncompiled
    def call(self, func: Any, arguments: Any, start: int, end: int, result: Any) -> None:
        """Tell the trails of the tensors among the arguments of a call."""
        for tensor in tensors(arguments):
            known = self.trails.get(id(tensor))
            if known is not None and known[0]() is tensor:
                for trail in tuple(known[1]):
                    trail.taken(func, start, end, result)

    def clear(self) -> None:
        """Follow nothing any more."""
        self.trails.clear()

    def _freed(self, key: int, ref: weakref.ref[Tensor]) -> None:
        known = self.trails.get(key)
        if known is not None and known[0] is ref:
            del self.trails[key]
            for trail in known[1]:
                trail.freed()


_VALUES = {"data", "T", "mT", "H", "mH", "real", "imag"}  # properties that give the values


def _aside() -> frozenset[Any]:
    names = "size dim ndimension numel nelement stride storage_offset element_size is_contiguous"
    names += (
        " is_floating_point is_complex is_pinned is_shared get_device register_hook retain_grad"
    )
    names += (
        " requires_grad_ untyped_storage data_ptr __len__ __repr__ __format__ __hash__ backward"
    )
    methods = [getattr(torch.Tensor, name) for name in names.split()]
    properties = {k: v for k, v in vars(torch._C.TensorBase).items() if hasattr(v, "__set__")}
    reads = [value.__get__ for name, value in properties.items() if name not in _VALUES]
    writes = [value.__set__ for value in properties.values()]
    return frozenset(methods + reads + writes)


# Calls that read what a tensor is, and not its values.
ASIDE = _aside()


def name_of(func: Any) -> str:
    """What the user called: "copy_", "item"; "float" for `__float__`."""
    name: str = getattr(func, "__name__", "")
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name
