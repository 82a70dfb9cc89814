"""The memory of a tensor, and the dense tensors that a sparse or a nested one is made of.

Private: `torch._C._storage_id` identifies the memory, as `untyped_storage()._cdata` does;
`_dispatch_isTensorSubclassLike` is true for tensors batched by vmap, for nested and for meta ones
too; `torch._C._functorch` tells what torch.func wraps; a `FakeTensor` has no values, and
`torch._mkldnn` is a layout without a storage (2.13).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

PLAIN = (Tensor, torch.nn.Parameter)  # types whose memory is their own

_storage_id: Any = torch._C._storage_id  # type: ignore[attr-defined]


def storage_id(tensor: Tensor) -> int:
    """Identifies the memory of a dense tensor, among those that are alive."""
    found = _storage_id(tensor) if type(tensor) in PLAIN else tensor.untyped_storage()._cdata
    return int(found)


@torch.no_grad()
def dense_parts(tensor: Tensor) -> list[Tensor]:
    """What a tensor is made of; of a dense one itself.

    In the order in which PyTorch copies them (SparseTensor.cpp and TensorConversions.cpp in
    ATen/native; torch/nested/_internal/ops.py; 2.11 to 2.15).

    >>> [part.tolist() for part in dense_parts(torch.tensor([[0.0, 5.0]]).to_sparse())]
    [[[0], [1]], [5.0]]
    """
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]
    if tensor.layout == torch.jagged:
        jagged: Any = tensor
        parts = (jagged.values(), jagged.offsets(), jagged.lengths())
        return [part for part in parts if part is not None]
    return [tensor.values()] if tensor.is_nested else [tensor]


def is_plain(tensor: Tensor) -> bool:
    """Is it a dense tensor with values of its own."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and not torch._C._dispatch_isTensorSubclassLike(tensor)
    )


def unwrapped(tensor: Tensor) -> Tensor:
    """What torch.func has wrapped, however many times; any other tensor itself."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def has_values(tensor: Tensor) -> bool:
    """Has it values that can be read: is it not meta, not fake, and not batched by vmap."""
    if type(tensor) is Tensor and tensor.layout == torch.strided and not tensor.is_nested:
        return is_plain(tensor)
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def storages(tensor: Tensor) -> list[tuple[int, Tensor]]:
    """What identifies the memory of each part of a tensor, and that part; of MKL-DNN's own, none.

    >>> [part.shape for _, part in storages(torch.eye(2).to_sparse())]
    [torch.Size([2, 2]), torch.Size([2])]
    """
    tensor = unwrapped(tensor)
    if type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_nested:
        return [(storage_id(tensor), tensor)]
    if tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]
        return []
    return [(storage_id(part), part) for part in dense_parts(tensor)]
