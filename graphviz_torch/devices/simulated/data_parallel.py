"""Run `nn.DataParallel` on simulated devices.

The nodes of the graph come from PyTorch's own Scatter, Broadcast and Gather functions. Only the
copies inside these functions are replaced, because they are C++ code that exists in CUDA builds
only. Each tensor is copied by `Tensor.to` instead, which is recorded. Replicas run one after the
other instead of in threads, with the same values.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import _functions, comm

# Private API of PyTorch 2.11 to 2.14: returns the leaves of nested containers in order.
from torch.utils._pytree import tree_leaves

from .device_names import CPU, cuda_block, current_device, is_simulated, simulated_devices


def rows() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the rows for `patches.py`: owner, name and maker of each function to replace."""
    # Private API of PyTorch 2.11 to 2.14: the names that DataParallel looks up.
    module = importlib.import_module("torch.nn.parallel.data_parallel")
    return [
        (module, "_get_available_device_type", _device_type),
        (module, "_get_all_device_indices", _device_indices),
        (module, "parallel_apply", _parallel_apply),
        (importlib.import_module("torch.nn.parallel"), "parallel_apply", _parallel_apply),
        (comm, "broadcast_coalesced", _broadcast),
        (comm, "gather", _gather),
        (comm, "reduce_add", _reduce_add),
        (_functions.Scatter, "forward", _scatter),
    ]


def _device_type(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: simulated_devices()[0].type if simulated_devices() else original()


def _device_indices(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: [device.index for device in simulated_devices()] or original()


def _are_simulated(devices: Sequence[Any]) -> bool:
    return bool(devices) and is_simulated(_device(devices[0]))


def _device(device: Any) -> torch.device:
    """Return the device for a device index of DataParallel, which names no device type.

    A negative index and None mean the CPU.
    """
    if not isinstance(device, int):
        return torch.device("cpu" if device is None else device)
    if device < 0:
        return CPU
    cuda = torch.device("cuda", device)
    return cuda if cuda_block() is not None else torch.device("meta", device)


def _scatter(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(ctx: Any, devices: Any, sizes: Any, dim: int, tensor: torch.Tensor) -> Any:
        if not _are_simulated(devices):
            return original(ctx, devices, sizes, dim, tensor)
        ctx.dim = dim
        ctx.input_device = -1 if tensor.device.type == "cpu" else tensor.get_device()
        chunks = (
            tensor.chunk(len(devices), dim)
            if sizes is None
            else torch.split(tensor, list(sizes), dim)
        )
        return tuple(c.to(_device(d)) for c, d in zip(chunks, devices, strict=False))

    return forward


def _broadcast(original: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast(tensors: Any, devices: Any, *arguments: Any, **options: Any) -> Any:
        if not _are_simulated(devices):
            return original(tensors, devices, *arguments, **options)
        tensors = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        return [[t.detach().to(_device(device)) for t in tensors] for device in devices]

    return broadcast


def _gather(original: Callable[..., Any]) -> Callable[..., Any]:
    def gather(tensors: Any, dim: int = 0, destination: Any = None, **options: Any) -> Any:
        if not _are_simulated([t.get_device() for t in tensors]):
            return original(tensors, dim, destination, **options)
        tensors = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        return torch.cat([t.to(_device(destination)) for t in tensors], dim)

    return gather


def _reduce_add(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_add(tensors: Any, destination: Any = None) -> Any:
        if not _are_simulated([t.get_device() for t in tensors]):
            return original(tensors, destination)
        place = _device(destination)
        return sum((t.to(place) for t in tensors[1:]), tensors[0].to(place))

    return reduce_add


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
