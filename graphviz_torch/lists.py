"""Optimizers and gradient clipping that take whole lists of tensors, on simulated devices.

`foreach=True` and `fused=True` ask PyTorch by device type whether there are kernels; what answers
is replaced while anybody simulates. The kernels are the CPU's. `capturable=True` is refused, for it
is about CUDA graphs.

Private: the names that are looked up (2.11 to 2.14).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .simulated_tensor import is_simulated


def names(simulating: Callable[[], Any]) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Owner, name, and what makes our function of theirs.

    Args:
        simulating: does the thread that asks simulate a device.
    """

    def takes_lists(theirs: Callable[..., Any]) -> Callable[..., Any]:
        return lambda device: is_simulated(device) or theirs(device)

    def fused_on(theirs: Callable[..., Any]) -> Callable[..., Any]:
        return lambda: [*theirs(), "meta"] if simulating() else theirs()

    clipping = importlib.import_module("torch.nn.utils.clip_grad")
    optimizers = importlib.import_module("torch.optim.optimizer")
    return [
        (clipping, "_device_has_foreach_support", takes_lists),
        (optimizers, "_get_fused_kernels_supported_devices", fused_on),
    ]
