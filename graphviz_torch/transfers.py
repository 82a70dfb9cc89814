"""Copies between devices, as PyTorch dispatches them.

Counted: every copy whose source and target devices differ, forward, backward and outside the graph;
also reads of one number (`item`, `float`), and CPU indices into a tensor on another device.
Not counted: copies inside a kernel, collectives, copies that another thread makes, and what goes
to a meta tensor, which has no values.
`seconds` is time on the device's stream; None where it could not be measured. It is never an
estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .dispatch import Call
from .graph import TensorMeta, Transfer, TransferKind
from .places import Place
from .tracer import device_label, tensor_meta


@dataclass(slots=True, eq=False)
class Seen:
    """One copy, with what is known while it happens. A trail of the tensor it made."""

    kind: TransferKind
    source: str
    target: str
    tensor: TensorMeta
    pinned: bool | None
    non_blocking: bool
    numbers: range  # of the nodes it made
    data: int
    fn: Any = None  # the node that backward is running, until the run ends
    node: int | None = None  # its id ...
    run: int = 0  # ... in this backward run of the recording, from 1; 0 outside any
    place: Place | None = None
    module: str = ""
    in_forward: bool = False
    operation: str = ""
    label: str = ""
    used: bool | None = None
    seconds: float | None = None

    def taken(self, func: Any, start: int, end: int, result: Any) -> None:
        """An operation read the copy."""
        self.used = True

    def freed(self) -> None:
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
        )


class Transfers:
    """The copies of one recording, in order."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._data: dict[tuple[Any, ...], tuple[StorageWeakRef, int]] = {}
        self._numbers = 0

    def see(self, call: Call) -> list[tuple[Seen, Tensor, Tensor | None]]:
        """Note what a dispatched operator copied between devices.

        Returns what was noted, with the tensor that was copied and the tensor that the copy made.
        """
        noted = []
        for source, devices, meta, made, host in _copies(call):
            labels = device_label(devices[0]), device_label(devices[1])
            if "meta" in (labels[0].split(":")[0], labels[1].split(":")[0]):
                continue
            seen = Seen(
                _kind(*devices),
                labels[0],
                labels[1],
                meta,
                host.is_pinned() if host is not None else None,
                _non_blocking(call),
                range(call.start, call.end),
                self._number(source),
            )
            if made is not None:
                self._data[_identity(made)] = (_storage(made), seen.data)
            self.seen.append(seen)
            noted.append((seen, source, made))
        return noted

    def _number(self, source: Tensor) -> int:
        key = _identity(source)
        known = self._data.get(key)
        if known is None or known[0].expired():  # type: ignore[no-untyped-call]
            known = self._data[key] = (_storage(source), self._numbers)
            self._numbers += 1
        return known[1]


# What is copied, from and to which device, how it arrives, the new tensor, the tensor on the host.
_Copy = tuple[
    Tensor, tuple[torch.device, torch.device], TensorMeta, "Tensor | None", "Tensor | None"
]


def _copies(call: Call) -> Iterator[_Copy]:
    operator, args = call.operator, call.args
    source = args[0]
    if operator == "aten::_foreach_copy_":
        for target, tensor in zip(args[0], args[1], strict=False):
            yield from _copy(tensor, target, None)
    elif operator == "aten::_to_copy":
        yield from _copy(source, call.result, call.result)
    elif operator == "aten::copy_":
        if isinstance(args[1], Tensor):
            yield from _copy(args[1], source, None)
    elif operator == "aten::_local_scalar_dense":
        if not source.is_cpu:
            cpu = torch.device("cpu")
            meta = tensor_meta(source)._replace(shape=(), device="cpu")
            yield source, (source.device, cpu), meta, None, None
    elif not source.is_cpu:
        for index in args[1]:
            if isinstance(index, Tensor) and index.is_cpu:
                yield from _index(index, source)
        if len(args) > 2 and isinstance(args[2], Tensor) and args[2].is_cpu:
            yield from _copy(args[2], source, None)


def _copy(source: Tensor, target: Tensor, made: Tensor | None) -> Iterator[_Copy]:
    if source.device != target.device:
        host = source if source.is_cpu else target if target.is_cpu else None
        meta = tensor_meta(source)._replace(
            dtype=str(target.dtype)[6:], device=device_label(target.device)
        )
        yield source, (source.device, target.device), meta, made, host


def _index(index: Tensor, into: Tensor) -> Iterator[_Copy]:
    # A mask is turned into one index for each of its dimensions before it is moved.
    label = device_label(into.device)
    if index.dtype in (torch.bool, torch.uint8):
        shapes: list[tuple[int, ...]] = [(int(torch.count_nonzero(index)),)] * index.dim()
    else:
        shapes = [tuple(index.shape)]
    for shape in shapes:
        meta = TensorMeta(shape, "int64", label)
        yield index, (index.device, into.device), meta, None, index


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
    if tensor.layout != torch.strided:
        return (id(tensor),)
    storage = tensor.untyped_storage()
    version = 0 if tensor.is_inference() else tensor._version
    return storage._cdata, tensor.storage_offset(), tuple(tensor.shape), version


def _storage(tensor: Tensor) -> StorageWeakRef:
    dense = tensor if tensor.layout == torch.strided else tensor._values()
    return StorageWeakRef(dense.untyped_storage())  # type: ignore[no-untyped-call]


def _elsewhere(args: Any, result: Any) -> bool:
    return bool(args[0].device != result.device)


def _from_elsewhere(args: Any, result: Any) -> bool:
    return isinstance(args[1], Tensor) and args[1].device != args[0].device


def _on_device(args: Any, result: Any) -> bool:
    return not args[0].is_cpu


# What can copy between devices, and how to tell at once that it did not.
OPERATORS: dict[str, Callable[..., bool]] = {
    "_to_copy": _elsewhere,
    "copy_": _from_elsewhere,
    "_local_scalar_dense": _on_device,
    "index.Tensor": _on_device,
    "index_put_": _on_device,
    "_index_put_impl_": _on_device,
    "_foreach_copy_": lambda args, result: True,
}
