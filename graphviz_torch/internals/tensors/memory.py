"""Decide whether a tensor may be read, and find the plain tensors with its elements.

A kernel that reads a tensor without memory crashes the process. Meta, fake, batched and functional
tensors, many wrapper subclasses, and parameters that FSDP freed have no memory. Code that reads the
user's tensors therefore calls these functions first, and gets plain tensors with memory.

    is_dense(tensor)     True if it has exactly one storage, with or without memory
    has_memory(tensor)   True if it is dense and a kernel may read it
    with_memory(tensors) the tensors for which `has_memory` is True
    have_memory(tensors) True if `has_memory` is True for all tensors
    elements(tensor)     the plain tensors that contain its elements, if there are any
    parts(tensor)        the tensors that it keeps alive, and that are copied if it is copied
    parts_of_each(tensors)   the parts of many tensors, with their storage ids

Only attributes of subclasses are read. No operator is called on them, which would run the user's
`__torch_dispatch__`. Callers use `unseen_calls()`, because function modes see attribute reads.

Uses private API (2.13): `torch._C._data_address` returns the address of the memory without the side
effect of `data_ptr()` on copy-on-write memory; `torch._C._storage_id` identifies the storage, as
`untyped_storage()._cdata` does; `torch._C._functorch` unwraps tensors of torch.func; and the
attributes in which the wrapper subclasses named below keep their tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ...graph import Extent
from ...graph.immutable import NamedTuple
from ..exceptions import ignore_exceptions
from ..functions import TensorBase
from ..guards import no_autograd, no_functions, no_operators

PLAIN = (Tensor, torch.nn.Parameter)  # types that own their memory

_address: Any = torch._C._data_address  # type: ignore[attr-defined]
_storage_id: Any = torch._C._storage_id  # type: ignore[attr-defined]
_functorch: Any = torch._C._functorch
_is_nested = attrgetter("is_nested")


class Elements(NamedTuple):
    """The ordinary tensors that store the elements of a tensor, such as of a sparse one."""

    tensors: list[Tensor]  # dense tensors with memory
    numel: int  # number of elements, including those that a sparse layout omits
    extent: Extent = ""  # the part of the elements that the tensors contain; "" for all


_NO_ELEMENTS = Elements([], 0)


def is_dense(tensor: Tensor) -> bool:
    """Return True if the tensor has one storage: it is neither a subclass nor sparse or nested."""
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_nested


def has_memory(tensor: Tensor) -> bool:
    """Return True if a kernel may read the tensor: it is dense, and allocated or empty.

    >>> has_memory(torch.ones(2)), has_memory(torch.ones(2, device="meta"))
    (True, False)
    """
    # `is_dense` is written out here for speed, because this is called for every gradient.
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    try:
        return bool(_address(tensor)) or (TensorBase.numel(tensor) == 0 and not tensor.is_meta)
    except (RuntimeError, NotImplementedError):  # batched and functional tensors have no storage
        return False


def may_be_read(tensor: Tensor) -> bool:
    """Return True if a kernel of ours may read the tensor now.

    This is so if the tensor has memory, and no CUDA graph is being captured on the current stream.
    """
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return has_memory(tensor)


def with_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that have memory, without a Python call for each."""
    plain = [tensor for tensor in tensors if type(tensor) in PLAIN and not tensor.is_nested]
    with suppress(RuntimeError, NotImplementedError):  # raised for another layout
        if all(map(_address, plain)):  # the common case
            return plain
    return list(filter(has_memory, plain))


def have_memory(strided: Sequence[Tensor]) -> bool:
    """Return True if a kernel may read all of these strided tensors of class torch.Tensor."""
    with suppress(RuntimeError, NotImplementedError):
        return not any(map(_is_nested, strided)) and all(map(_address, strided))
    return False


def elements(tensor: Tensor) -> Elements:
    """Return the ordinary tensors that store the elements of a sparse, sharded or other tensor.

    There are no such tensors if it cannot be read.

    A sparse tensor is coalesced. For a DTensor the result is the local shard, for a TwoTensor both
    inner tensors. A pending AsyncCollectiveTensor is not awaited.

    >>> found = elements(torch.tensor([[0.0, 5.0]]).to_sparse())
    >>> found.numel, [one.tolist() for one in found.tensors]
    (2, [[5.0]])
    """
    if has_memory(tensor):  # the common case
        return Elements([tensor], TensorBase.numel(tensor))
    # Exceptions are suppressed, because a subclass may raise any.
    with no_functions(), no_operators(), no_autograd(), ignore_exceptions():
        return _elements(tensor)
    return _NO_ELEMENTS


def is_on_cpu(tensor: Tensor) -> bool:
    """Return True if the tensor can be read without synchronizing with a device."""
    return tensor.is_cpu


def readable(tensor: Any) -> list[Tensor]:
    """Return a list with the detached dense tensor of a floating-point tensor.

    The list is empty for other values, and if the tensor cannot be read as one dense tensor.
    """
    if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
        return []
    found = elements(tensor)
    whole = found.numel == TensorBase.numel(tensor) > 0 and tensor.layout is torch.strided
    return [TensorBase.detach(found.tensors[0])] if whole and len(found.tensors) == 1 else []


def all_readable(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return `readable` of many tensors in one list; this is fast for ordinary tensors."""
    floats = [tensor for tensor in tensors if tensor.dtype.is_floating_point]
    plain = with_memory([tensor for tensor in floats if type(tensor) is Tensor])
    others = [one for t in floats if type(t) is not Tensor for one in readable(t)]
    return [*filter(TensorBase.numel, plain), *others]


def parts(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that a tensor consists of, each with one storage; [tensor] if it is dense.

    They are in the order in which PyTorch copies them (SparseTensor.cpp and TensorConversions.cpp
    in ATen/native; torch/nested/_internal/ops.py; 2.11 to 2.15). The list is empty for a tensor in
    MKL-DNN's layout.

    >>> [part.tolist() for part in parts(torch.tensor([[0.0, 5.0]]).to_sparse())]
    [[[0], [1]], [5.0]]
    """
    # Nested torch.func transforms wrap more than once.
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    if is_dense(tensor):
        return [tensor]
    with no_functions(), no_operators(), no_autograd(), ignore_exceptions():
        return _parts(tensor)
    return [tensor]


def parts_of_each(tensors: Sequence[Tensor]) -> tuple[list[tuple[int, Tensor]], list[int]]:
    """Return the parts of many tensors as pairs (index, part), and the storage id of each part."""
    with suppress(RuntimeError, NotImplementedError):
        if set(map(type, tensors)) <= set(PLAIN) and not any(map(_is_nested, tensors)):
            # The common case. A tensor without exactly one storage raises an exception.
            return list(enumerate(tensors)), list(map(_storage_id, tensors))
    found = [(i, part) for i, tensor in enumerate(tensors) for part in parts(tensor)]
    return found, storage_ids([part for _, part in found])


def storage_ids(parts: Sequence[Tensor]) -> list[int]:
    """Return, for each tensor, the number that `storage_id` returns."""
    with suppress(RuntimeError, NotImplementedError):
        if set(map(type, parts)) <= set(PLAIN):
            return list(map(_storage_id, parts))
    return list(map(storage_id, parts))


def storage_sizes(parts: Sequence[Tensor]) -> list[int]:
    """Return, for each tensor, the size of its storage in bytes, as `storage_bytes` does."""
    with suppress(RuntimeError, NotImplementedError):
        return list(map(torch.UntypedStorage.nbytes, map(TensorBase.untyped_storage, parts)))
    return list(map(storage_bytes, parts))


def storage_id(tensor: Tensor) -> int:
    """Return a number that identifies the storage of a tensor, or of its first part.

    It is unique among live storages; 0 if the tensor has no storage.
    """
    try:
        plain = type(tensor) in PLAIN
        found: int = _storage_id(tensor) if plain else storage_of(tensor)._cdata
        return found
    except (RuntimeError, NotImplementedError):  # a layout without storage
        first = next(iter(parts(tensor)), tensor)
        return 0 if first is tensor else storage_id(first)


def storage_bytes(part: Tensor) -> int:
    """Return the size of a storage in bytes, allocated or not; 0 for a layout without storage."""
    try:
        return storage_of(part).nbytes()
    except (RuntimeError, NotImplementedError):
        return 0


def storage_ref(part: Tensor) -> Any:
    """Return a weak reference to the storage; `expired()` is True once the storage is freed."""
    return StorageWeakRef(storage_of(part))  # type: ignore[no-untyped-call]


def storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """Return the storage of a tensor; if a subclass overrides `untyped_storage`, it is called."""
    own = type(tensor).untyped_storage is not Tensor.untyped_storage
    found: torch.UntypedStorage = (
        tensor.untyped_storage() if own else TensorBase.untyped_storage(tensor)
    )
    return found


def _elements(tensor: Tensor) -> Elements:
    if has_memory(tensor):
        return Elements([tensor], TensorBase.numel(tensor))
    kind = type(tensor)
    for read in _readers(kind):
        inner, extent = read(tensor)
        found = list(map(_elements, inner))
        if not found or not all(one.tensors for one in found):
            return _NO_ELEMENTS
        return Elements(
            [plain for one in found for plain in one.tensors],
            sum(one.numel for one in found),
            extent or found[0].extent,
        )
    if tensor.is_nested:
        return _elements(TensorBase.values(tensor))
    if tensor.layout is torch.strided:  # a subclass that owns its memory is read as a plain alias
        return _NO_ELEMENTS if kind in PLAIN else _elements(TensorBase.detach(tensor))
    if tensor.layout is torch.sparse_coo:
        tensor = TensorBase.coalesce(tensor)
    return _elements(TensorBase.values(tensor))._replace(numel=TensorBase.numel(tensor))


def _parts(tensor: Tensor) -> list[Tensor]:
    whole: Any = tensor
    if tensor.layout is torch.sparse_coo:
        return [TensorBase._indices(whole), TensorBase._values(whole)]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = TensorBase.crow_indices(whole), TensorBase.col_indices(whole)
        return [TensorBase.values(whole), *indices]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        indices = TensorBase.ccol_indices(whole), TensorBase.row_indices(whole)
        return [TensorBase.values(whole), *indices]
    if tensor.layout is torch.jagged:
        jagged = (whole._values, whole._offsets, whole._lengths)
        return [part for part in jagged if part is not None]
    if tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]
        return []
    # A wrapper subclass that names its inner tensors.
    if hasattr(type(tensor), "__tensor_flatten__"):
        inner = [getattr(whole, name) for name in whole.__tensor_flatten__()[0]]
        found = [part for one in inner if isinstance(one, Tensor) for part in parts(one)]
        return found or [tensor]
    return [TensorBase.values(whole)] if tensor.is_nested else [tensor]


Reader = Callable[[Any], tuple[list[Tensor], Extent]]


def _read_dtensor(tensor: Any) -> tuple[list[Tensor], Extent]:
    whole = all(placement.is_replicate() for placement in tensor._spec.placements)
    return [tensor._local_tensor], "" if whole else "local part"


# (module, name) of a wrapper subclass -> function that returns its inner tensors. Names are used
# because most of these classes are not imported. Wrappers of this package have a method
# `inner_tensors` instead.
_READERS: dict[tuple[str, str], Reader] = {
    ("torch.distributed.tensor", "DTensor"): _read_dtensor,
    ("torch.distributed._functional_collectives", "AsyncCollectiveTensor"): (
        lambda tensor: ([tensor.elem] if tensor.completed else [], "")
    ),
    ("torch.nested._internal.nested_tensor", "NestedTensor"): lambda tensor: ([tensor._values], ""),
    ("torch.testing._internal.two_tensor", "TwoTensor"): (
        lambda tensor: ([tensor.a, tensor.b], "inner tensors")
    ),
}


def _readers(kind: type) -> list[Reader]:
    if kind in PLAIN:
        return []
    if hasattr(kind, "inner_tensors"):
        return [lambda tensor: (tensor.inner_tensors(), "")]
    classes = ((getattr(sys.modules.get(m), n, None), read) for (m, n), read in _READERS.items())
    return [read for cls, read in classes if cls is not None and issubclass(kind, cls)]
