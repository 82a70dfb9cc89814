"""Save and load tensors on simulated devices with `torch.save` and `torch.load`.

A tensor on "sim:0" is saved as a CPU tensor. A tensor on a simulated "cuda:0" is saved with its
device, like a real CUDA tensor.

`torch.load` loads tensors onto the saved device, or onto the simulated device that `map_location`
names. If the saved device does not exist, PyTorch raises its own error, which mentions
`map_location`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

# Private API of PyTorch 2.11 to 2.14: returns the leaves of nested containers in order.
from torch.utils._pytree import tree_leaves

from .device_names import CPU, cuda_block, is_place, place_of, program_device, simulated_devices
from .tensor import LOCATION, SimulatedTensor, become


def rows() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """Return (owner, name, maker) of each function to replace; see `patches.py`."""
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
