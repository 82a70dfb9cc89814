"""What may be read of a tensor, and which plain tensors stand for it.

A kernel that reads a tensor without memory ends the process, and many have none: on the meta
device, fake, batched, functional, the wrappers of many subclasses, what FSDP has freed. Whoever
reads a tensor of the program asks here first, and gets plain tensors that have memory.

    is_dense(tensor)     it has one storage, be there memory or not
    has_memory(tensor)   it is dense, and a kernel may read it; with_memory(tensors): those that;
                         lie_in_memory(tensors): do all, of many that are strided
    elements(tensor)     the plain tensors that hold its elements, if any do
    parts(tensor)        all that it is made of: what it keeps alive, and what a copy of it copies;
                         parts_of_each(tensors): of many

A subclass is asked for attributes, never for an operator: its `__torch_dispatch__` is the
program's. Whoever asks here does so inside `unseen_calls()`, for function modes see attributes.

Private: `torch._C._data_address` tells where the memory is, and changes nothing, as `data_ptr()`
does to memory that is copied on write; `torch._C._storage_id` identifies it, as
`untyped_storage()._cdata` does; `torch._C._functorch` tells what torch.func wraps; and where the
classes of PyTorch named below have their tensors (2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ...graph import Extent
from ..functions import TensorBase
from ..guards import no_autograd, no_functions, no_operators

PLAIN = (Tensor, torch.nn.Parameter)  # types whose memory is their own

_address: Any = torch._C._data_address  # type: ignore[attr-defined]
_storage_id: Any = torch._C._storage_id  # type: ignore[attr-defined]
_functorch: Any = torch._C._functorch


class Elements(NamedTuple):
    """The plain tensors that hold what a tensor is said to hold."""

    tensors: list[Tensor]  # dense, with memory
    numel: int  # those included that a sparse layout leaves out
    extent: Extent = ""  # what they are of


_NONE = Elements([], 0)


def is_dense(tensor: Tensor) -> bool:
    """Has it one storage and no class of its own: is it neither sparse, nested nor a wrapper."""
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_nested


def has_memory(tensor: Tensor) -> bool:
    """May a kernel read it: is it a dense tensor that lies in memory, or has no element.

    >>> has_memory(torch.ones(2)), has_memory(torch.ones(2, device="meta"))
    (True, False)
    """
    # `is_dense`, without a call: this is asked of every gradient.
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    try:
        return bool(_address(tensor)) or (TensorBase.numel(tensor) == 0 and not tensor.is_meta)
    except (RuntimeError, NotImplementedError):  # no storage at all: batched, functional
        return False


def may_be_read(tensor: Tensor) -> bool:
    """May a kernel of ours read it now: it has memory, and no CUDA graph is being captured."""
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return has_memory(tensor)


def with_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Those tensors of many that have memory, without a call of Python's for each."""
    dense = [
        t for t in tensors if type(t) in PLAIN and t.layout is torch.strided and not t.is_nested
    ]
    with suppress(RuntimeError, NotImplementedError):
        if all(map(_address, dense)):  # as most
            return dense
    return list(filter(has_memory, dense))


def lie_in_memory(strided: Sequence[Tensor]) -> bool:
    """May a kernel read all of these, of the plain types and the strided layout."""
    with suppress(RuntimeError, NotImplementedError):
        return not any(map(attrgetter("is_nested"), strided)) and all(map(_address, strided))
    return False


def elements(tensor: Tensor) -> Elements:
    """What may be read in the place of a tensor; no tensor at all where nothing may.

    A sparse tensor is coalesced. Of a DTensor it is this process's part, of a TwoTensor both
    tensors. An AsyncCollectiveTensor that nobody has waited for is not waited for here.

    >>> found = elements(torch.tensor([[0.0, 5.0]]).to_sparse())
    >>> found.numel, [one.tolist() for one in found.tensors]
    (2, [[5.0]])
    """
    if has_memory(tensor):  # as most
        return Elements([tensor], TensorBase.numel(tensor))
    with no_functions(), no_operators(), no_autograd(), suppress(Exception):  # of a subclass's
        return _elements(tensor)
    return _NONE


def is_at_hand(tensor: Tensor) -> bool:
    """Can it be read without waiting for a device."""
    return tensor.is_cpu


def readable(tensor: Any) -> list[Tensor]:
    """The values of a floating-point tensor, whole; nothing where they cannot be read."""
    if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
        return []
    found = elements(tensor)
    whole = found.numel == TensorBase.numel(tensor) > 0 and tensor.layout is torch.strided
    return [TensorBase.detach(found.tensors[0])] if whole and len(found.tensors) == 1 else []


def all_readable(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The values of many: without a call for each, where they are plain, as most."""
    floats = [tensor for tensor in tensors if tensor.dtype.is_floating_point]
    plain = with_memory([tensor for tensor in floats if type(tensor) is Tensor])
    others = [one for t in floats if type(t) is not Tensor for one in readable(t)]
    return [*filter(TensorBase.numel, plain), *others]


def parts(tensor: Tensor) -> list[Tensor]:
    """The tensors that a tensor is made of, each with one storage; of a dense one itself.

    In the order in which PyTorch copies them (SparseTensor.cpp and TensorConversions.cpp in
    ATen/native; torch/nested/_internal/ops.py; 2.11 to 2.15). MKL-DNN's own layout has none.

    >>> [part.tolist() for part in parts(torch.tensor([[0.0, 5.0]]).to_sparse())]
    [[[0], [1]], [5.0]]
    """
    while _functorch.is_functorch_wrapped_tensor(tensor):  # by torch.func, however many times
        tensor = _functorch.get_unwrapped(tensor)
    if is_dense(tensor):
        return [tensor]
    with no_functions(), no_operators(), no_autograd(), suppress(Exception):
        return _parts(tensor)
    return [tensor]


def parts_of_each(tensors: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
    """The parts of many tensors, each with the position of its tensor."""
    wrapped = map(_functorch.is_functorch_wrapped_tensor, tensors)
    dense = [
        not inside and type(t) in PLAIN and t.layout is torch.strided and not t.is_nested
        for t, inside in zip(tensors, wrapped, strict=True)
    ]
    if all(dense):  # as most
        return list(enumerate(tensors))
    return [(i, part) for i, tensor in enumerate(tensors) for part in parts(tensor)]


def storage_ids(parts: Sequence[Tensor]) -> list[int]:
    """`storage_id` of each."""
    with suppress(RuntimeError, NotImplementedError):
        if set(map(type, parts)) <= set(PLAIN):
            return list(map(_storage_id, parts))
    return list(map(storage_id, parts))


def storage_sizes(parts: Sequence[Tensor]) -> list[int]:
    """`storage_bytes` of each."""
    with suppress(RuntimeError, NotImplementedError):
        return list(map(torch.UntypedStorage.nbytes, map(TensorBase.untyped_storage, parts)))
    return list(map(storage_bytes, parts))


def storage_id(tensor: Tensor) -> int:
    """Identifies the memory of a tensor, or of its first part, among those that are alive.

    0 where it has none.
    """
    try:
        plain = type(tensor) in PLAIN
        found: int = _storage_id(tensor) if plain else storage_of(tensor)._cdata
        return found
    except (RuntimeError, NotImplementedError):  # a layout without storage
        first = next(iter(parts(tensor)), tensor)
        return 0 if first is tensor else storage_id(first)


def storage_bytes(part: Tensor) -> int:
    """The size of that memory, whether or not it is there; 0 for a layout without storage."""
    try:
        return storage_of(part).nbytes()
    except (RuntimeError, NotImplementedError):
        return 0


def storage_ref(part: Tensor) -> Any:
    """Tells whether that memory is still there, and keeps it not: `expired()`."""
    return StorageWeakRef(storage_of(part))  # type: ignore[no-untyped-call]


def storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """The memory of a tensor; a subclass says itself which it is."""
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
            return _NONE
        return Elements(
            [plain for one in found for plain in one.tensors],
            sum(one.numel for one in found),
            extent or found[0].extent,
        )
    if tensor.is_nested:
        return _elements(TensorBase.values(tensor))
    if tensor.layout is torch.strided:  # of a subclass with memory of its own, the plain one
        return _NONE if kind in PLAIN else _elements(TensorBase.detach(tensor))
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
    if hasattr(type(tensor), "__tensor_flatten__"):  # a wrapper that names what it wraps
        inner = [getattr(whole, name) for name in whole.__tensor_flatten__()[0]]
        found = [part for one in inner if isinstance(one, Tensor) for part in parts(one)]
        return found or [tensor]
    return [TensorBase.values(whole)] if tensor.is_nested else [tensor]


Reader = Callable[[Any], tuple[list[Tensor], Extent]]


def _of_dtensor(tensor: Any) -> tuple[list[Tensor], Extent]:
    whole = all(placement.is_replicate() for placement in tensor._spec.placements)
    return [tensor._local_tensor], "" if whole else "local part"


# By module and name, for most are not imported: wrappers whose elements lie in tensors that they
# wrap. A wrapper of this package's says itself, in `inner_tensors`.
_READERS: dict[tuple[str, str], Reader] = {
    ("torch.distributed.tensor", "DTensor"): _of_dtensor,
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
