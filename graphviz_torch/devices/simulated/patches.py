"""The table of everything of PyTorch's that is replaced while a thread simulates devices.

A row has the owner, the name, and a function that makes ours of PyTorch's. All are put back when
the last block ends. Here are the rows of what PyTorch asks by device type before it dispatches
anything: optimizers and clipping that take whole lists of tensors (`foreach=True`, `fused=True`;
the kernels are the CPU's), and a DataLoader that pins. `capturable=True` is refused, for it is
about CUDA graphs. The rows of `torch.cuda`, `nn.DataParallel` and files are in their own modules.

Private: the names that are looked up (2.11 to 2.14).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils import _device
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils.data import dataloader
from torch.utils.data._utils.pin_memory import pin_memory

from ...internals.hooks.engine import EngineWatch
from ...internals.hooks.modes import FUNCTIONS
from ...internals.hooks.watch import Installation
from . import autocast, cuda, data_parallel, files
from .device_names import (
    Block,
    cuda_block,
    innermost_block,
    is_simulated,
    place_of,
    program_device,
    simulated_devices,
)

_Maker = Callable[[Any], Any]
_REPLACED: list[tuple[Any, str, Any]] = []


def table() -> list[tuple[Any, str, _Maker]]:
    """Return owner and name of everything that is replaced, and what makes ours of it."""
    clipping = importlib.import_module("torch.nn.utils.clip_grad")
    optimizers = importlib.import_module("torch.optim.optimizer")
    workers = dataloader._MultiProcessingDataLoaderIter
    return [
        (clipping, "_device_has_foreach_support", _takes_lists),
        (optimizers, "_get_fused_kernels_supported_devices", _supported),
        (dataloader._BaseDataLoaderIter, "__init__", _begins),
        (workers, "_process_data", _pins),
        (torch._C._nn, "_parse_to", _parses),
        (DeviceContext, "__torch_function__", _by_default),
        (torch, "get_default_device", _default_device),
        *[
            (owner, "_engine_run_backward", _backward)
            for owner in (torch.autograd.graph, torch.autograd)
        ],
        *data_parallel.rows(),
        *files.rows(),
        *cuda.rows(),
        *autocast.rows(),
    ]


def _install() -> None:
    if _REPLACED:
        return
    for owner, name, make in table():
        before = vars(owner)[name]
        _REPLACED.append((owner, name, before))
        static = isinstance(before, staticmethod)
        ours = make(before.__func__ if static else before)
        setattr(owner, name, staticmethod(ours) if static else ours)
    autocast.install()


def _remove() -> None:
    while _REPLACED:
        setattr(*_REPLACED[-1])
        _REPLACED.pop()
    autocast.remove()
    if not EngineWatch.installation.watchers:  # they may have ended before: ours stood there
        EngineWatch.installation.suspend()


PATCHES: Installation[Block] = Installation(_install, _remove)


def _takes_lists(theirs: Callable[..., Any]) -> Callable[..., Any]:
    return lambda device: is_simulated(device) or theirs(device)


def _supported(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """As `_get_fused_kernels_supported_devices`: the types whose tensors are stepped in lists."""
    return lambda: [*theirs(), "meta"] if simulated_devices() else theirs()


def _begins(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """As a DataLoader's iterator begins: what it pins is pinned here, in no thread of its own."""

    @wraps(theirs)
    def begin(self: Any, loader: Any) -> None:
        if not (loader.pin_memory and simulated_devices()) or _has_accelerator():
            theirs(self, loader)
            return
        loader.pin_memory = False
        try:
            theirs(self, loader)
        finally:
            loader.pin_memory = True
        self._pin_memory = not loader.num_workers
        self._simulated_pin = loader.num_workers > 0

    return begin


def _pins(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """As an iterator with worker processes takes a batch from them."""

    @wraps(theirs)
    def process(self: Any, *args: Any) -> Any:
        data = theirs(self, *args)
        pins = getattr(self, "_simulated_pin", False)
        return pin_memory(data) if pins else data  # type: ignore[no-untyped-call]

    return process


def _has_accelerator() -> bool:
    return cuda_block() is None and torch.accelerator.is_available()


def _parses(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """As `nn.Module.to` reads its arguments: a number is a device, and no mode sees it."""

    def parse(*args: Any, **kwargs: Any) -> Any:
        if cuda_block() is not None:
            args = (
                tuple(torch.device("cuda", a) if type(a) is int else a for a in args[:1]) + args[1:]
            )
            if type(kwargs.get("device")) is int:
                kwargs["device"] = torch.device("cuda", kwargs["device"])
        return theirs(*args, **kwargs)

    return parse


def _by_default(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """As `with torch.device("cuda")` gives factories its device, below all other modes."""

    @wraps(theirs)
    def call(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = place_of(self.device)
        if place is not self.device and func in _device_constructors():
            kwargs["device"] = place if kwargs.get("device") is None else kwargs["device"]
        return theirs(self, func, types, args, kwargs)

    return call


def _default_device(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def default_device() -> torch.device:
        current = _device.CURRENT_DEVICE
        place = place_of(current)
        return theirs() if place is current else program_device(place)

    return default_device


def _backward(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """As a backward runs: PyTorch takes modes away there, and hooks of the program need ours."""

    def run(*args: Any, **kwargs: Any) -> Any:
        block = innermost_block()
        if block is None or block.mode is None or block.mode in FUNCTIONS.now():
            return theirs(*args, **kwargs)
        with block.mode:
            return theirs(*args, **kwargs)

    return run
