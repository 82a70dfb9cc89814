"""`nn.DataParallel` on simulated devices.

PyTorch's own Scatter, Broadcast and Gather functions make the nodes; only the copies below them,
which are C++ code of CUDA builds, are done here, one tensor at a time and seen by every recorder.
Replicas run one after the other, on PyTorch's GPUs they run in threads: values are the same.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import _functions, comm

from ...internals.hooks.watch import Installation
from . import patches as replaced
from .tensor import FIRST


class _Here(threading.local):
    """What belongs to the thread that asks."""

    def __init__(self) -> None:
        self.blocks: list[list[torch.device]] = []  # of each simulate_accelerator() that is open


_HERE = _Here()
_REPLACED: list[tuple[Any, str, Any]] = []


def simulated_devices() -> list[torch.device]:
    """Those of the innermost `simulate_accelerator()` block of this thread."""
    return list(_HERE.blocks[-1]) if _HERE.blocks else []


@contextmanager
def data_parallel_on(devices: list[torch.device]) -> Iterator[None]:
    """Let `nn.DataParallel` run on simulated devices in this thread."""
    blocks = _HERE.blocks  # also where another thread ends this one's block
    try:
        _PATCHES.add(devices)
        blocks.append(devices)
        yield
    finally:
        blocks[:] = [block for block in blocks if block is not devices]
        _PATCHES.discard(devices)


def _restore() -> None:
    while _REPLACED:
        setattr(*_REPLACED[-1])
        _REPLACED.pop()


def _replace() -> None:
    if _REPLACED:
        return
    # Private: the names that DataParallel looks up (2.11 to 2.14).
    module = importlib.import_module("torch.nn.parallel.data_parallel")
    for owner, name, ours in (
        (module, "_get_available_device_type", _device_type),
        (module, "_get_all_device_indices", _device_indices),
        (module, "parallel_apply", _parallel_apply),
        (comm, "broadcast_coalesced", _broadcast),
        (comm, "gather", _gather),
        (comm, "reduce_add", _reduce_add),
        *replaced.names(simulated_devices),
    ):
        theirs = getattr(owner, name)
        _REPLACED.append((owner, name, theirs))
        setattr(owner, name, ours(theirs))
    _REPLACED.append((_functions.Scatter, "forward", staticmethod(_functions.Scatter.forward)))
    _functions.Scatter.forward = staticmethod(_scatter(_functions.Scatter.forward))  # type: ignore[method-assign]


_PATCHES: Installation[list[torch.device]] = Installation(_replace, _restore)


def _device_type(theirs: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: "meta" if simulated_devices() else theirs()


def _device_indices(theirs: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: [device.index for device in simulated_devices()] or theirs()


def _ours(devices: Sequence[Any]) -> bool:
    first = devices[0] if devices else None
    index = first.index if isinstance(first, torch.device) else first
    return isinstance(index, int) and index >= FIRST


def _place(device: Any) -> torch.device:
    if isinstance(device, int):
        return torch.device("meta", device) if device >= 0 else torch.device("cpu")
    return torch.device(device)


def _scatter(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def forward(ctx: Any, devices: Any, sizes: Any, dim: int, tensor: torch.Tensor) -> Any:
        if not _ours(devices):
            return theirs(ctx, devices, sizes, dim, tensor)
        ctx.dim = dim
        ctx.input_device = -1 if tensor.device.type == "cpu" else tensor.get_device()
        chunks = (
            tensor.chunk(len(devices), dim)
            if sizes is None
            else torch.split(tensor, list(sizes), dim)
        )
        return tuple(c.to(_place(d)) for c, d in zip(chunks, devices, strict=False))

    return forward


def _broadcast(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast(tensors: Any, devices: Any, *arguments: Any, **options: Any) -> Any:
        if not _ours(devices):
            return theirs(tensors, devices, *arguments, **options)
        tensors = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        return [[t.detach().to(_place(device)) for t in tensors] for device in devices]

    return broadcast


def _gather(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def gather(tensors: Any, dim: int = 0, destination: Any = None, **options: Any) -> Any:
        if not _ours([t.get_device() for t in tensors]):
            return theirs(tensors, dim, destination, **options)
        tensors = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        return torch.cat([t.to(_place(destination)) for t in tensors], dim)

    return gather


def _reduce_add(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_add(tensors: Any, destination: Any = None) -> Any:
        if not _ours([t.get_device() for t in tensors]):
            return theirs(tensors, destination)
        place = _place(destination)
        return sum((t.to(place) for t in tensors[1:]), tensors[0].to(place))

    return reduce_add


def _parallel_apply(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def apply(modules: Any, inputs: Any, kwargs: Any = None, devices: Any = None) -> Any:
        if not _ours(devices or ()):
            return theirs(modules, inputs, kwargs, devices)
        kwargs = kwargs or [{}] * len(modules)
        return [m(*i, **k) for m, i, k in zip(modules, inputs, kwargs, strict=True)]

    return apply
