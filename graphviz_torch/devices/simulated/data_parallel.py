"""Run `nn.DataParallel` on simulated devices.

The nodes of the graph are created by PyTorch's own Scatter, Broadcast and Gather functions. Only
the copies inside these functions, and inside those of `torch.cuda.comm`, are replaced, because they
are C++ code that only CUDA builds contain. The replacements call `Tensor.to`, so the copies are
recorded. Replicas run one after the other instead of in threads, with the same results.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.cuda import nccl
from torch.nn.parallel import _functions

# Private API of PyTorch 2.11 to 2.14: returns the leaves of nested containers in order.
from torch.utils._pytree import tree_leaves

from .devices import CPU, cuda_block, current_device, is_simulated, simulated_devices


def rows() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return (owner, name, maker) of each function to replace; see `patches.py`."""
    # Private API of PyTorch 2.11 to 2.14: the names that DataParallel looks up.
    module = importlib.import_module("torch.nn.parallel.data_parallel")
    # (replacement of a C++ function that only CUDA builds contain, function that returns the
    # devices of a call, given its first two arguments).
    functions: list[tuple[Callable[..., Any], Callable[[Any, Any], Sequence[Any]]]] = [
        (_scatter, lambda _, devices: devices),
        (_scatter_out, lambda _, out: _indices(out)),
        (_broadcast, lambda _, devices: devices),
        (_broadcast_out, lambda _, out: _indices(out)),
        (_broadcast_coalesced, lambda _, devices: devices),
        (_gather, lambda tensors, _: _indices(tensors)),
        (_gather_out, lambda tensors, _: _indices(tensors)),
    ]
    return [
        (module, "_get_available_device_type", _device_type),
        (module, "_get_all_device_indices", _device_indices),
        (module, "parallel_apply", _parallel_apply),
        (importlib.import_module("torch.nn.parallel"), "parallel_apply", _parallel_apply),
        (nccl, "is_available", _has_nccl),
        (_functions.Scatter, "forward", _scatter_function),
        *[(torch._C, run.__name__, _maker(run, devices)) for run, devices in functions],
    ]


def _maker(
    run: Callable[..., Any], devices: Callable[[Any, Any], Sequence[Any]]
) -> Callable[..., Any]:
    """Return the maker of a replacement that calls `run` if the devices of a call are simulated.

    Args:
        run: the replacement of the function of `torch._C` with the same name.
        devices: returns the devices, given the first two arguments.
    """

    def make(original: Callable[..., Any] | None) -> Callable[..., Any]:
        def call(first: Any, second: Any, *others: Any) -> Any:
            if _are_simulated(devices(first, second)):
                return run(first, second, *others)
            if original is None:
                raise AttributeError(f"module 'torch._C' has no attribute {run.__name__!r}")
            return original(first, second, *others)

        return call

    return make


def _device_type(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: simulated_devices()[0].type if simulated_devices() else original()


def _device_indices(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: [device.index for device in simulated_devices()] or original()


def _are_simulated(devices: Sequence[Any]) -> bool:
    return bool(devices) and is_simulated(_device(devices[0]))


def _indices(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.get_device() for tensor in tensors]


def _device(device: Any) -> torch.device:
    """Return the device for an index that DataParallel passes without a device type.

    A negative index and None mean the CPU.
    """
    if not isinstance(device, int):
        return torch.device("cpu" if device is None else device)
    if device < 0:
        return CPU
    cuda = torch.device("cuda", device)
    return cuda if cuda_block() is not None else torch.device("meta", device)


def _has_nccl(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tensors: not _are_simulated(_indices(tensors)) and original(tensors)


def _scatter_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """Scatter a batch without PyTorch's streams, which PyTorch would keep after the simulation."""

    def forward(ctx: Any, devices: Any, sizes: Any, dim: int, tensor: torch.Tensor) -> Any:
        if not _are_simulated(devices):
            return original(ctx, devices, sizes, dim, tensor)
        ctx.dim = dim
        ctx.input_device = -1 if tensor.device.type == "cpu" else tensor.get_device()
        return tuple(_scatter(tensor, devices, sizes, dim))

    return forward


def _scatter(
    tensor: torch.Tensor, devices: Any, sizes: Any = None, dim: int = 0, streams: Any = None
) -> list[torch.Tensor]:
    chunks = (
        tensor.chunk(len(devices), dim) if sizes is None else torch.split(tensor, list(sizes), dim)
    )
    return [chunk.to(_device(device)) for chunk, device in zip(chunks, devices, strict=False)]


def _scatter_out(tensor: torch.Tensor, out: Any, dim: int = 0, streams: Any = None) -> Any:
    chunks = torch.split(tensor, [each.size(dim) for each in out], dim)
    for each, chunk in zip(out, chunks, strict=True):
        each.copy_(chunk)
    return out


def _broadcast(tensor: torch.Tensor, devices: Any) -> list[torch.Tensor]:
    return [tensor.to(_device(device)) for device in devices]


def _broadcast_out(tensor: torch.Tensor, out: Any) -> Any:
    for each in out:
        if each is not tensor:
            each.copy_(tensor)
    return out


def _broadcast_coalesced(tensors: Any, devices: Any, size: int) -> list[list[torch.Tensor]]:
    return [[tensor.detach().to(_device(device)) for tensor in tensors] for device in devices]


def _gather(tensors: Any, dim: int, destination: Any) -> torch.Tensor:
    return torch.cat([tensor.to(_device(destination)) for tensor in tensors], dim)


def _gather_out(tensors: Any, out: torch.Tensor, dim: int) -> torch.Tensor:
    parts = torch.split(out, [tensor.size(dim) for tensor in tensors], dim)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor)
    return out


def _parallel_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(modules: Any, inputs: Any, kwargs: Any = None, devices: Any = None) -> Any:
        if not (simulated_devices() if devices is None else _are_simulated(devices)):
            return original(modules, inputs, kwargs, devices)
        kwargs = kwargs or [{}] * len(modules)
        if devices is None:
            tensors = [[t for t in tree_leaves(i) if isinstance(t, torch.Tensor)] for i in inputs]
            devices = [first[0].device if first else CPU for first in tensors]
        outputs = []
        for module, given, named, device in zip(modules, inputs, kwargs, devices, strict=True):
            with current_device(_device(device)):
                given = given if isinstance(given, (list, tuple)) else (given,)
                outputs.append(module(*given, **named))
        return outputs

    return apply
