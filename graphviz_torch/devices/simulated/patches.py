"""Define the table of PyTorch functions that are replaced while a thread simulates devices.

A row is (owner, name, maker). The owner is the module or class that contains the function. The
maker is called with the original function, and returns the replacement. The originals are restored
when the last block ends.

The rows of this module are functions that check the device type before they dispatch: optimizers
and gradient clipping with `foreach=True` or `fused=True`, for which the CPU's kernels run, and
pinned memory in a DataLoader. `capturable=True` raises an error, because it is for CUDA graphs.
Other modules of this folder contain the rows for `torch.cuda`, `nn.DataParallel` and autocast.

The functions that save and load files are replaced, too. A tensor on "sim:0" is saved as a CPU
tensor. A tensor on a simulated "cuda:0" is saved with its device, like a real CUDA tensor.

`torch.load` loads tensors onto the saved device, or onto the simulated device that `map_location`
names. If the saved device does not exist, PyTorch raises its own error, which mentions
`map_location`.

The names in the table are private API of PyTorch 2.11 to 2.14.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils import _device
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader
from torch.utils.data._utils.pin_memory import pin_memory

from ...internals.hooks.modes import FUNCTIONS
from ...internals.hooks.watch import Replacement, Row
from . import autocast, cuda, data_parallel
from .devices import (
    CPU,
    SimulatedBlock,
    cuda_block,
    innermost_block,
    is_place,
    is_simulated,
    place_of,
    program_device,
    simulated_devices,
)
from .tensor import LOCATION, SimulatedTensor, become


def table() -> list[Row]:
    """Return (owner, name, maker) of each function to replace."""
    clipping = importlib.import_module("torch.nn.utils.clip_grad")
    optimizers = importlib.import_module("torch.optim.optimizer")
    workers = dataloader._MultiProcessingDataLoaderIter
    return [
        (clipping, "_device_has_foreach_support", _has_foreach_support),
        (optimizers, "_get_fused_kernels_supported_devices", _fused_devices),
        (dataloader._BaseDataLoaderIter, "__init__", _loader_iterator),
        (workers, "_process_data", _process_data),
        (torch._C._nn, "_parse_to", _parse_to),
        (DeviceContext, "__torch_function__", _device_context),
        (torch, "get_default_device", _default_device),
        *[
            (owner, "_engine_run_backward", _backward)
            for owner in (torch.autograd.graph, torch.autograd)
        ],
        *data_parallel.rows(),
        *_file_rows(),
        *cuda.rows(),
        *autocast.rows(),
    ]


PATCHES = Replacement[SimulatedBlock](table, autocast.install, autocast.remove)


def _has_foreach_support(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda device: is_simulated(device) or original(device)


def _fused_devices(original: Callable[..., Any]) -> Callable[..., Any]:
    """Add the device type of simulated devices to those with fused optimizer kernels."""
    return lambda: [*original(), "meta"] if simulated_devices() else original()


def _loader_iterator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pin a DataLoader's batches in the calling thread: only this thread simulates devices."""

    @wraps(original)
    def begin(self: Any, loader: Any) -> None:
        if not (loader.pin_memory and simulated_devices()) or _has_accelerator():
            original(self, loader)
            return
        loader.pin_memory = False
        try:
            original(self, loader)
        finally:
            loader.pin_memory = True
        self._pin_memory = not loader.num_workers
        self._simulated_pin = loader.num_workers > 0

    return begin


def _process_data(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pin each batch that a DataLoader receives from its worker processes."""

    @wraps(original)
    def process(self: Any, *args: Any) -> Any:
        data = original(self, *args)
        pins = getattr(self, "_simulated_pin", False)
        return pin_memory(data) if pins else data  # type: ignore[no-untyped-call]

    return process


def _has_accelerator() -> bool:
    return cuda_block() is None and torch.accelerator.is_available()


def _parse_to(original: Callable[..., Any]) -> Callable[..., Any]:
    """Accept a device index in `nn.Module.to`, which parses its arguments without torch's modes."""

    def parse(*args: Any, **kwargs: Any) -> Any:
        if cuda_block() is not None:
            args = (
                tuple(torch.device("cuda", a) if type(a) is int else a for a in args[:1]) + args[1:]
            )
            if type(kwargs.get("device")) is int:
                kwargs["device"] = torch.device("cuda", kwargs["device"])
        return original(*args, **kwargs)

    return parse


def _device_context(original: Callable[..., Any]) -> Callable[..., Any]:
    """Inside `with torch.device("cuda")`, pass the simulated device to factory functions."""

    @wraps(original)
    def call(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = place_of(self.device)
        if place is not self.device and func in _device_constructors():
            kwargs["device"] = place if kwargs.get("device") is None else kwargs["device"]
        return original(self, func, types, args, kwargs)

    return call


def _default_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def default_device() -> torch.device:
        current = _device.CURRENT_DEVICE
        place = place_of(current)
        return original() if place is current else program_device(place)

    return default_device


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Simulate devices in the program's backward hooks as well, where PyTorch disables modes."""

    def run(*args: Any, **kwargs: Any) -> Any:
        block = innermost_block()
        if block is None or block.mode is None or block.mode in FUNCTIONS.now():
            return original(*args, **kwargs)
        with block.mode:
            return original(*args, **kwargs)

    return run


def _file_rows() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """Return (owner, name, maker) of each function that saves or loads files."""
    # Private API of PyTorch 2.11 to 2.14: the names that torch.save and torch.load look up.
    serialization = importlib.import_module("torch.serialization")
    utils = importlib.import_module("torch._utils")
    return [
        (torch, "load", _load),
        (serialization, "location_tag", _location_tag),
        (serialization, "default_restore_location", _restore_location),
        (utils, "_rebuild_tensor", _rebuild_tensor),
        (torch.storage._StorageBase, "cuda", _storage_cuda),
    ]


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        named = isinstance(map_location, (str, torch.device))
        if not (simulated_devices() and named and is_place(torch.device(map_location))):
            return original(f, map_location, *args, **kwargs)
        loaded = original(f, CPU, *args, **kwargs)
        for part in {id(part): part for part in tree_leaves(loaded)}.values():
            if isinstance(part, torch.nn.Module):
                part.to(map_location)
            elif isinstance(part, torch.Tensor):
                become(part, part.detach().to(map_location))
        return loaded

    return load


def _location_tag(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda storage: getattr(storage, LOCATION, None) or original(storage)


def _restore_location(original: Callable[..., Any]) -> Callable[..., Any]:
    def restore(storage: Any, location: str) -> Any:
        place = place_of(location)
        if not isinstance(place, torch.device):
            return original(storage, location)
        setattr(storage, LOCATION, str(program_device(place)))  # read when the tensor is rebuilt
        return storage

    return restore


def _rebuild_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    def rebuild(storage: Any, *layout: Any) -> torch.Tensor:
        tensor: torch.Tensor = original(storage, *layout)
        location = getattr(storage._untyped_storage, LOCATION, None)
        if location is None or cuda_block() is None:
            return tensor
        return SimulatedTensor(tensor, place_of(location))

    return rebuild


def _storage_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `UntypedStorage.cuda`, as used in `map_location=lambda s, location: s.cuda(1)`."""

    @wraps(original)
    def cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
        if cuda_block() is None:
            return original(storage, device, non_blocking)
        moved = storage.clone()
        place = place_of("cuda" if device is None else device)
        setattr(moved, LOCATION, str(program_device(place)))
        return moved

    return cuda
