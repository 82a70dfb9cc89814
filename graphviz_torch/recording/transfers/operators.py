"""Find out which tensors and how many bytes a PyTorch operator copies between devices.

If PyTorch casts, broadcasts or converts a tensor before the copy, the size is that of the converted
tensor. Comments name the source files of PyTorch (2.11 to 2.15) that show its behavior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...graph import TensorMeta
from ...graph.immutable import NamedTuple
from ...internals.functions import TensorBase
from ...internals.hooks.dispatch import Dispatched
from ...internals.tensors.memory import parts
from ...internals.tensors.metadata import device_label, tensor_meta


class DispatchedCopy(NamedTuple):
    """One copy between devices that an operator made."""

    source: Tensor  # the tensor that the caller copied
    part: Tensor  # `source` itself, or one of its tensors, such as the indices of a sparse tensor
    target: torch.device
    moved: TensorMeta  # the data that was transferred
    pinned: bool | None = None  # True if the host memory is pinned; None if not applicable
    non_blocking: bool = False
    made: Tensor | None = None  # the new tensor, if there is one
    is_count: bool = False  # True if only the size of the operator's result was copied


def dispatched_copies(call: Dispatched) -> Iterator[DispatchedCopy]:
    """Yield the copies that a dispatched operator made between devices."""
    operator, args = call.operator, call.args
    first = args[0]
    if operator == "aten::_foreach_copy_":
        for target, source in zip(args[0], args[1], strict=True):
            yield from _copy(call, source, target)
    elif operator == "aten::_to_copy":
        yield from _copy(call, first, call.result, made=call.result)
    elif operator == "aten::copy_":
        if isinstance(args[1], Tensor):
            yield from _copy(call, args[1], first)
    elif operator == "aten::_local_scalar_dense":
        if not first.is_cpu:
            meta = tensor_meta(first)._replace(shape=(), device="cpu")
            # PyTorch reads a number from CUDA through pinned memory (CUDAScalar.cu in
            # ATen/native/cuda).
            yield DispatchedCopy(
                first, first, torch.device("cpu"), meta, True if first.is_cuda else None
            )
    elif operator in _COUNTED:
        counted = args[_COUNTED[operator]]
        if not counted.is_cpu:
            yield _count_of(counted, torch.int64 if "unique" in operator else torch.int32)
    elif not first.is_cpu:
        yield from _indexing(first, *_index_arguments(*args[1:], **call.kwargs))


def _copy(
    call: Dispatched, source: Tensor, target: Tensor, made: Tensor | None = None
) -> Iterator[DispatchedCopy]:
    if source.device == target.device:
        return
    pairs = [(source, target)]
    if source.layout == target.layout:
        alike = list(zip(parts(source), parts(target), strict=False))
        pairs = alike if len(parts(source)) == len(parts(target)) else pairs
    non_blocking = _non_blocking(call)
    for part, into in pairs:
        after = tensor_meta(into)
        moved = tensor_meta(part)._replace(device=after.device)
        # A blocking copy casts on the CPU, a non-blocking copy on the accelerator (see
        # copy_kernel_cuda in ATen/native/cuda/Copy.cu). `copy_` broadcasts its source before the
        # copy.
        if part.is_cpu != non_blocking:
            moved = moved._replace(dtype=after.dtype)
        if call.operator != "aten::_to_copy" and part is source:
            moved = moved._replace(shape=after.shape)
        pinned = None
        if part.is_cpu or into.is_cpu:
            host = part if part.is_cpu else into
            casts = part.dtype != into.dtype and not non_blocking
            # If PyTorch casts or changes the layout on the host, the copy uses a temporary tensor
            # in pageable memory instead of the pinned one.
            direct = _have_same_layout(part, into) or (
                TensorBase.is_contiguous(host) and host.shape == into.shape
            )
            pinned = TensorBase.is_pinned(host) and direct and not casts
        yield DispatchedCopy(source, part, into.device, moved, pinned, non_blocking, made)


def _have_same_layout(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors have the same shape and strides, and no gaps in memory."""
    span = 1 + sum(
        (n - 1) * stride for n, stride in zip(a.shape, TensorBase.stride(a), strict=True)
    )
    return (
        a.shape == b.shape
        and TensorBase.stride(a) == TensorBase.stride(b)
        and span == TensorBase.numel(a)
    )


def _index_arguments(
    indices: list[Tensor | None], values: Tensor | None = None, accumulate: bool = False, *_: Any
) -> tuple[list[Tensor], Tensor | None, bool]:
    return [index for index in indices if index is not None], values, accumulate


def _indexing(
    into: Tensor, indices: list[Tensor], values: Tensor | None, accumulate: bool
) -> Iterator[DispatchedCopy]:
    """Yield the copies that are made when a tensor on a device other than the CPU is indexed.

    Indices on the CPU, and assigned values on the CPU, are copied to the device. For a mask on the
    device, the number of true elements is copied to the CPU, because the result's size depends on
    it.

    Args:
        into: the indexed tensor.
        indices: the indices.
        values: the values to assign, if any.
        accumulate: True if the values are added to the elements, False if they replace them.
    """
    fills = values is not None and not accumulate and _is_fill(values, into, indices)
    for index in indices:
        if _is_mask(index) and not index.is_cpu and not fills:
            yield _count_of(index, torch.int32)
    if values is not None and values.is_cpu and not fills:
        yield _host_copy(values, into.device, tuple(values.shape), values.dtype)
    sorts = accumulate or (
        values is not None
        and TensorBase.numel(values) > 1
        and torch.are_deterministic_algorithms_enabled()
    )
    if sorts and into.is_cuda:
        # Before the copy, indices are broadcast, and a mask is replaced by one index tensor per
        # dimension (see makeLinearIndex in ATen/native/cuda/Indexing.cu).
        known = [index for index in indices if index.is_cpu or not _is_mask(index)]
        lengths = [(_count(i),) if _is_mask(i) else tuple(i.shape) for i in known]
        shape = tuple(torch.broadcast_shapes(*lengths))  # type: ignore[no-untyped-call]
        for index in indices:
            for _ in range(TensorBase.dim(index) if _is_mask(index) else 1):
                if index.is_cpu:
                    yield _host_copy(index, into.device, shape, torch.int64)
        return
    for index in indices:
        if not index.is_cpu:
            continue
        if _is_mask(index):
            # Not the mask itself, but the indices of its true elements are copied, through pinned
            # memory if the device is a GPU (see expandTensors in ATen/native/IndexingUtils.h).
            shape = (_count(index), TensorBase.dim(index))
            copy = _host_copy(index, into.device, shape, torch.int64)
            yield copy._replace(pinned=into.is_cuda, non_blocking=into.is_cuda)
        else:
            yield _host_copy(index, into.device, tuple(index.shape), index.dtype)


def _count_of(counted: Tensor, dtype: torch.dtype) -> DispatchedCopy:
    """Return the copy to the CPU by which an operator reads the size of its result.

    On CUDA, a size of dtype int32 is copied through pinned memory (see Nonzero.cu, Unique.cu and
    UniqueCub.cu in ATen/native/cuda).

    Args:
        counted: the argument that determines the size.
        dtype: dtype of the size.
    """
    meta = TensorMeta((), str(dtype)[6:], "cpu")
    pinned = dtype == torch.int32 if counted.is_cuda else None
    return DispatchedCopy(counted, counted, torch.device("cpu"), meta, pinned, is_count=True)


def _host_copy(
    source: Tensor, target: torch.device, shape: tuple[int, ...], dtype: torch.dtype
) -> DispatchedCopy:
    moved = TensorMeta(shape, str(dtype)[6:], device_label(target))
    return DispatchedCopy(source, source, target, moved, TensorBase.is_pinned(source))


def _is_fill(values: Tensor, into: Tensor, indices: list[Tensor]) -> bool:
    """Return True if one number is assigned where a single mask is true, as in `x[mask] = 0`.

    PyTorch then passes the number to a kernel and copies no tensor (see canDispatchToMaskedFill in
    ATen/native/TensorAdvancedIndexingUtils.h). If the device is CUDA, the number must be on the
    CPU, where PyTorch creates a Python number.

    Args:
        values: the assigned values.
        into: the indexed tensor.
        indices: the indices.
    """
    number = TensorBase.numel(values) == 1 and (values.is_cpu or not into.is_cuda)
    mask = len(indices) == 1 and _is_mask(indices[0]) and indices[0].device == into.device
    return number and mask


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _count(mask: Tensor) -> int:
    return int(torch.count_nonzero(mask))


def _non_blocking(call: Dispatched) -> bool:
    if call.operator in ("aten::copy_", "aten::_foreach_copy_") and len(call.args) > 2:
        return bool(call.args[2])
    return bool(call.kwargs.get("non_blocking", False))


def _changes_device(args: Any, result: Any) -> bool:
    return bool(args[0].device != result.device)


def _source_is_on_another_device(args: Any, result: Any) -> bool:
    return isinstance(args[1], Tensor) and args[1].device != args[0].device


def _on_device(args: Any, result: Any) -> bool:
    return not args[0].is_cpu


# Operator whose result's size depends on values -> position of the argument with these values.
_COUNTED = {
    "aten::nonzero": 0,
    "aten::masked_select": 1,
    "aten::_unique2": 0,
    "aten::unique_dim": 0,
    "aten::unique_consecutive": 0,
}

# Operator that may copy between devices -> function of its arguments and result, which returns True
# if a call may have made a copy.
OPERATORS: dict[str, Callable[..., bool]] = {
    "aten::_to_copy": _changes_device,
    "aten::copy_": _source_is_on_another_device,
    "aten::_local_scalar_dense": _on_device,
    "aten::index.Tensor": _on_device,
    "aten::index_put_": _on_device,
    "aten::_index_put_impl_": _on_device,
    "aten::_foreach_copy_": lambda args, result: True,
    **dict.fromkeys(_COUNTED, _on_device),
}
