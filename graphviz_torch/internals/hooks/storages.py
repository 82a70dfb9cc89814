"""Watch memory: report each storage that an operator creates or resizes, or that is freed.

A dispatch mode inspects the outputs of every operator, below autograd and inside wrapper
subclasses, whose inner tensors own the memory. Real and fake tensors are therefore counted in the
same way. Memory that a kernel allocates and frees internally, and memory that C++ allocates without
an operator, is not seen.

Uses private API (2.8 to 2.15): `_cdata` identifies a storage. The Python object of a storage lives
as long as its memory, so a weak reference notices when the memory is freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from ..tensors.memory import storage_of

_Mode: Any = TorchDispatchMode
_new_size: Any = torch.UntypedStorage.resize_


class StorageWatch(_Mode):  # type: ignore[misc]
    """Dispatch mode that reports storages by number; the number of a freed storage may be reused.

    Args:
        on_change: called with the number and size in bytes of a new or resized storage.
        on_free: called with the number of a freed storage.
        on_operator: called with each operator (func, args, kwargs, result).
    """

    def __init__(
        self,
        on_change: Callable[[int, int], object],
        on_free: Callable[[int], object],
        on_operator: Callable[[Any, Any, Any, Any], object],
    ) -> None:
        super().__init__()
        self._on_change, self._on_free, self._on_operator = on_change, on_free, on_operator
        self.inside = False  # True while an operator runs
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}  # live storages and their bytes
        self._patch = patch.object(torch.UntypedStorage, "resize_", self._watched_resize())

    def __enter__(self) -> StorageWatch:
        self._patch.start()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._patch.stop()
        self._alive.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(is_wrapper(kind) for kind in types):
            return NotImplemented  # the subclass then dispatches operators on its inner tensors
        outside, self.inside = self.inside, True
        try:
            result = func(*args, **kwargs)
        finally:
            self.inside = outside
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, Tensor):
                self._inspect(each)
            elif isinstance(each, (tuple, list)):
                for one in each:
                    if isinstance(one, Tensor):
                        self._inspect(one)
        self._on_operator(func, args, kwargs, result)
        return result

    def _inspect(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
            return
        storage = storage_of(tensor)
        self._record_size(storage)

    def _record_size(self, storage: Any) -> None:
        number, nbytes = storage._cdata, storage.nbytes()
        known = self._alive.get(number)
        if known is None:
            ref = weakref.ref(storage, partial(self._on_collected, number))
            self._alive[number] = ref, nbytes
        elif known[1] == nbytes:
            return
        else:
            self._alive[number] = known[0], nbytes
        self._on_change(number, nbytes)

    def _on_collected(self, number: int, _: object) -> None:
        if self._alive.pop(number, None) is not None:
            self._on_free(number)

    def _watched_resize(self) -> Callable[[Any, int], Any]:
        def resize_(storage: Any, size: int) -> Any:
            result = _new_size(storage, size)
            self._record_size(storage)
            return result

        return resize_


def is_wrapper(kind: type) -> bool:
    """Return True if tensors of this class wrap other tensors, which own the memory."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")
