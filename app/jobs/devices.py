"""Provide the devices that a visitor has chosen, real or simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from graphviz_torch import simulate_accelerator

SIMULATED = (1, 2, 3, 4, 8)


def cuda_names() -> list[str]:
    """Return the name of each CUDA device."""
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


@contextlib.contextmanager
def use(choice: str) -> Iterator[list[torch.device]]:
    """Yield the chosen devices. Simulated devices exist until the end of the `with` block.

    Args:
        choice: "cpu", "cuda:0", "cuda" for all CUDA devices, or "sim2" for two simulated devices.

    Raises:
        ValueError: for any other choice.
    """
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    simulated = [f"sim{count}" for count in SIMULATED]
    if choice in simulated:
        with simulate_accelerator(int(choice[3:])) as devices:
            yield devices
    elif choice == "cuda" and cuda:
        yield [torch.device(name) for name in cuda]
    elif choice == "cpu" or choice in cuda:
        yield [torch.device(choice)]
    else:
        known = ", ".join([*cuda, *["cuda"] * bool(cuda), *simulated, "cpu"])
        raise ValueError(f"device {choice!r} is unknown: choose one of {known}.")
