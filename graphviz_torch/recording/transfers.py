"""Copies between devices, as PyTorch dispatches them.

Counted: every copy whose source and target devices differ, forward, backward and outside the graph;
also reads of one number (`item`, `float`, `if tensor`), of how many results there are (`x[mask]`,
`nonzero`, `unique`), and CPU indices into a tensor on another device.
Not counted: copies inside a kernel, collectives, copies that another thread makes, and what goes
to a meta tensor, which has no values.
`seconds` is time on the device's stream; None where it could not be measured. It is never an
estimate.

The bytes are those that go over: what PyTorch casts, broadcasts or looks up before a copy counts as
it is then. Where it does so is written in its own sources, named beside each rule (2.11 to 2.15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..graph import TensorMeta, Transfer, TransferKind
from ..internals.hooks.dispatch import Call
from ..internals.tensors.metadata import device_label, tensor_meta
from ..internals.tensors.storage import dense_parts
from .source_lines import Place


@dataclass(slots=True, eq=False)
class CopyRecord:
    """One copy, with what is known while it happens. Told what becomes of the tensor it made."""

    kind: TransferKind
    source: str
    target: str
    tensor: TensorMeta
    pinned: bool | None
    non_blocking: bool
    numbers: range  # of the nodes it made
    data: int
    node: int | None = None  # id of the one that backward was running ...
    run: int = 0  # ... in this backward run of the recording, from 1; 0 outside any
    place: Place | None = None
    module: str = ""
    in_forward: bool = False
    moment: int = 0
    operation: str = ""
    label: str = ""
    used: bool | None = None
    seconds: float | None = None

    def locate(self, place: Place | None, module: str, in_forward: bool, moment: int) -> None:
        """Where in the program it was made."""
        self.place, self.module = place, module
        self.in_forward, self.moment = in_forward, moment

    def attach_to_run(self, run: int, node: int | None) -> None:
        """A backward made it, and this node of its graph."""
        self.run, self.node = run, node

    def attach_to_call(self, operation: str, label: str) -> None:
        """A call of the user's made it, of a tensor with this label."""
        self.operation, self.label = operation, label

    def time(self, seconds: float) -> None:
        """The device took so long for it."""
        self.seconds = seconds

    def on_use(self) -> None:
        """An operation read the copy."""
        self.used = True

    def on_free(self) -> None:
        """The copy is gone; if nothing read it, it was for nothing."""
        self.used = bool(self.used)

    def transfer(self, node: int | None, where: str) -> Transfer:
        """The plain value, in a graph where it belongs to `node`."""
        return Transfer(
            self.kind,
            self.source,
            self.target,
            self.tensor,
            "backward" if self.run else "forward",
            node,
            where,
            self.module,
            self.operation,
            self.label,
            self.pinned,
            self.non_blocking,
            self.seconds,
            self.used,
            self.data,
            self.in_forward,
            self.moment,
        )


class Transfers:
    """The copies of one recording, in order."""

    def __init__(self) -> None:
        self.records: list[CopyRecord] = []
        self._data: dict[tuple[Any, ...], tuple[StorageWeakRef, int]] = {}
        self._numbers = 0

    def see(self, call: Call) -> list[tuple[CopyRecord, Tensor, Tensor | None]]:
        """Note what a dispatched operator copied between devices.

        Returns what was noted, with the tensor that was copied and the tensor that the copy made.
        """
        noted = []
        for copy in _copies(call):
            source, target = device_label(copy.part.device), copy.moved.device
            if "meta" in (source.split(":")[0], target.split(":")[0]):
                continue
            record = CopyRecord(
                _kind(copy.part.device, copy.target),
                source,
                target,
                copy.moved,
                copy.pinned,
                copy.non_blocking,
                range(0) if copy.is_count else range(call.start, call.end),
                self._number(None if copy.is_count else copy.part),
            )
            if copy.made is not None:
                self._data[_identity(copy.made)] = (_storage(copy.made), record.data)
            self.records.append(record)
            noted.append((record, copy.source, copy.made))
        return noted

    def _number(self, source: Tensor | None) -> int:
        if source is None:  # new data
            self._numbers += 1
            return self._numbers - 1
        key = _identity(source)
        known = self._data.get(key)
        if known is None or known[0].expired():  # type: ignore[no-untyped-call]
            known = self._data[key] = (_storage(source), self._numbers)
            self._numbers += 1
        return known[1]


class _Copy(NamedTuple):
    """One copy that an operator made."""

    source: Tensor  # what the caller copied
    part: Tensor  # what was copied of it: all, or one tensor that a sparse one is made of
    target: torch.device
    moved: TensorMeta  # what went over
    pinned: bool | None = None
    non_blocking: bool = False
    made: Tensor | None = None  # the new tensor
    is_count: bool = False  # it moved how many results `source` gives, not `source`


def _copies(call: Call) -> Iterator[_Copy]:
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
            # CUDA reads a number into pinned memory (CUDAScalar.cu in ATen/native/cuda).
            yield _Copy(first, first, torch.device("cpu"), meta, True if first.is_cuda else None)
    elif operator in _COUNTED:
        counted = args[_COUNTED[operator]]
        if not counted.is_cpu:
            yield _count_of(counted, torch.int64 if "unique" in operator else torch.int32)
    elif not first.is_cpu:
        yield from _indexing(first, *_index_arguments(*args[1:], **call.kwargs))


def _copy(
    call: Call, source: Tensor, target: Tensor, made: Tensor | None = None
) -> Iterator[_Copy]:
    if source.device == target.device:
        return
    pairs = [(source, target)]
    if source.layout == target.layout:
        pairs = list(zip(dense_parts(source), dense_parts(target), strict=True))
    non_blocking = _non_blocking(call)
    for part, into in pairs:
        after = tensor_meta(into)
        moved = tensor_meta(part)._replace(device=after.device)
        # A cast is made on the CPU if the copy blocks, else on the accelerator (copy_kernel_cuda in
        # ATen/native/cuda/Copy.cu): so before the copy or after it. A small source of copy_ is
        # broadcast before it.
        if part.is_cpu != non_blocking:
            moved = moved._replace(dtype=after.dtype)
        if call.operator != "aten::_to_copy" and part is source:
            moved = moved._replace(shape=after.shape)
        pinned = None
        if part.is_cpu or into.is_cpu:
            host = part if part.is_cpu else into
            casts = part.dtype != into.dtype and not non_blocking
            # What is cast or laid out anew on the host goes by way of memory that is not pinned.
            direct = _alike(part, into) or (host.is_contiguous() and host.shape == into.shape)
            pinned = host.is_pinned() and direct and not casts
        yield _Copy(source, part, into.device, moved, pinned, non_blocking, made)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Do two tensors lie in memory alike, and without gaps."""
    span = 1 + sum((n - 1) * stride for n, stride in zip(a.shape, a.stride(), strict=True))
    return a.shape == b.shape and a.stride() == b.stride() and span == a.numel()


def _index_arguments(
    indices: list[Tensor | None], values: Tensor | None = None, accumulate: bool = False, *_: Any
) -> tuple[list[Tensor], Tensor | None, bool]:
    return [index for index in indices if index is not None], values, accumulate


def _indexing(
    into: Tensor, indices: list[Tensor], values: Tensor | None, accumulate: bool
) -> Iterator[_Copy]:
    """What is copied to where the indexed tensor is: CPU indices, and a CPU number to put there.

    Of a mask that lies there the number of places is read, to know how large the result is.
    """
    fills = values is not None and not accumulate and _is_fill(values, into, indices)
    for index in indices:
        if _is_mask(index) and not index.is_cpu and not fills:
            yield _count_of(index, torch.int32)
    if values is not None and values.is_cpu and not fills:
        yield _moved(values, into.device, tuple(values.shape), values.dtype)
    sorts = accumulate or (
        values is not None and values.numel() > 1 and torch.are_deterministic_algorithms_enabled()
    )
    if sorts and into.is_cuda:
        # Each index goes over broadcast, and a mask as one for each dimension (makeLinearIndex in
        # ATen/native/cuda/Indexing.cu).
        known = [index for index in indices if index.is_cpu or not _is_mask(index)]
        lengths = [(_count(i),) if _is_mask(i) else tuple(i.shape) for i in known]
        shape = tuple(torch.broadcast_shapes(*lengths))  # type: ignore[no-untyped-call]
        for index in indices:
            for _ in range(index.dim() if _is_mask(index) else 1):
                if index.is_cpu:
                    yield _moved(index, into.device, shape, torch.int64)
        return
    for index in indices:
        if not index.is_cpu:
            continue
        if _is_mask(index):
            # The places where it is true, for a GPU by way of pinned memory (expandTensors in
            # ATen/native/IndexingUtils.h).
            shape = (_count(index), index.dim())
            copy = _moved(index, into.device, shape, torch.int64)
            yield copy._replace(pinned=into.is_cuda, non_blocking=into.is_cuda)
        else:
            yield _moved(index, into.device, tuple(index.shape), index.dtype)


def _count_of(counted: Tensor, dtype: torch.dtype) -> _Copy:
    """What is read of a tensor to know how many results there are: one number, from pinned memory
    where CUDA counts places (Nonzero.cu, Unique.cu and UniqueCub.cu in ATen/native/cuda)."""
    meta = TensorMeta((), str(dtype)[6:], "cpu")
    pinned = dtype == torch.int32 if counted.is_cuda else None
    return _Copy(counted, counted, torch.device("cpu"), meta, pinned, is_count=True)


def _moved(
    source: Tensor, target: torch.device, shape: tuple[int, ...], dtype: torch.dtype
) -> _Copy:
    moved = TensorMeta(shape, str(dtype)[6:], device_label(target))
    return _Copy(source, source, target, moved, source.is_pinned())


def _is_fill(values: Tensor, into: Tensor, indices: list[Tensor]) -> bool:
    """Is a number put where one mask is true: then it is read, not copied (canDispatchToMaskedFill
    in ATen/native/TensorAdvancedIndexingUtils.h). For CUDA alone Python makes it on the CPU."""
    number = values.numel() == 1 and (values.is_cpu or not into.is_cuda)
    mask = len(indices) == 1 and _is_mask(indices[0]) and indices[0].device == into.device
    return number and mask


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _count(mask: Tensor) -> int:
    return int(torch.count_nonzero(mask))


def _kind(source: torch.device, target: torch.device) -> TransferKind:
    if source.type == "cpu":
        return "HtoD"
    return "DtoH" if target.type == "cpu" else "DtoD"


def _non_blocking(call: Call) -> bool:
    if call.operator in ("aten::copy_", "aten::_foreach_copy_") and len(call.args) > 2:
        return bool(call.args[2])
    return bool(call.kwargs.get("non_blocking", False))


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tensors with the same memory and the same version of its contents."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return (id(tensor),)
    storage = tensor.untyped_storage()
    version = 0 if tensor.is_inference() else tensor._version
    return storage._cdata, tensor.storage_offset(), tuple(tensor.shape), version


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(dense_parts(tensor)[0].untyped_storage())  # type: ignore[no-untyped-call]


def _changes_device(args: Any, result: Any) -> bool:
    return bool(args[0].device != result.device)


def _source_is_on_another_device(args: Any, result: Any) -> bool:
    return isinstance(args[1], Tensor) and args[1].device != args[0].device


def _on_device(args: Any, result: Any) -> bool:
    return not args[0].is_cpu


# Operators whose result is as large as its values say: which argument is counted.
_COUNTED = {
    "aten::nonzero": 0,
    "aten::masked_select": 1,
    "aten::_unique2": 0,
    "aten::unique_dim": 0,
    "aten::unique_consecutive": 0,
}

# What can copy between devices, and how to tell at once that it did not.
OPERATORS: dict[str, Callable[..., bool]] = {
    "_to_copy": _changes_device,
    "copy_": _source_is_on_another_device,
    "_local_scalar_dense": _on_device,
    "index.Tensor": _on_device,
    "index_put_": _on_device,
    "_index_put_impl_": _on_device,
    "_foreach_copy_": lambda args, result: True,
    **{name[6:]: _on_device for name in _COUNTED},
}
