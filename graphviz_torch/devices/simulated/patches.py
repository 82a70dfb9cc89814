"""What PyTorch asks by device type before it dispatches anything, answered for simulated devices.

Optimizers and clipping that take whole lists of tensors (`foreach=True`, `fused=True`; the kernels
are the CPU's), a DataLoader that pins (in the process itself; with workers it asks for a real
accelerator), and `torch.load` onto a simulated device. `capturable=True` is refused, for it is
about CUDA graphs.

Private: the names that are looked up (2.11 to 2.14).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

# Private: walks containers in the order of their values (2.11 to 2.14).
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from .tensor import CPU, become, is_simulated

_Maker = Callable[[Callable[..., Any]], Callable[..., Any]]


def names(simulating: Callable[[], Any]) -> list[tuple[Any, str, _Maker]]:
    """Owner, name, and what makes our function of theirs.

    Args:
        simulating: does the thread that asks simulate a device.
    """

    def takes_lists(theirs: Callable[..., Any]) -> Callable[..., Any]:
        return lambda device: is_simulated(device) or theirs(device)

    def fused_on(theirs: Callable[..., Any]) -> Callable[..., Any]:
        return lambda: [*theirs(), "meta"] if simulating() else theirs()

    def iterates(theirs: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(theirs)
        def begin(self: Any, loader: Any) -> None:
            pins = loader.pin_memory and loader.num_workers == 0
            if not (pins and simulating()) or torch.accelerator.is_available():
                theirs(self, loader)
                return
            loader.pin_memory = False
            try:
                theirs(self, loader)
            finally:
                loader.pin_memory = True
            self._pin_memory = True

        return begin

    def loads(theirs: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(theirs)
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            named = isinstance(map_location, (str, torch.device))
            if not (simulating() and named and is_simulated(torch.device(map_location))):
                return theirs(f, map_location, *args, **kwargs)
            loaded = theirs(f, CPU, *args, **kwargs)
            for part in {id(part): part for part in tree_leaves(loaded)}.values():
                if isinstance(part, torch.nn.Module):
                    part.to(map_location)
                elif isinstance(part, torch.Tensor):
                    become(part, part.detach().to(map_location))
            return loaded

        return load

    clipping = importlib.import_module("torch.nn.utils.clip_grad")
    optimizers = importlib.import_module("torch.optim.optimizer")
    return [
        (clipping, "_device_has_foreach_support", takes_lists),
        (optimizers, "_get_fused_kernels_supported_devices", fused_on),
        (dataloader._BaseDataLoaderIter, "__init__", iterates),
        (torch, "load", loads),
    ]
