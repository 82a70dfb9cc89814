"""The devices a visitor can choose, and a block in which they are there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .job import run

if TYPE_CHECKING:
    import torch

SIMULATED = (1, 2, 3, 4, 8)
_found: list[str] | None = None


def cuda_names() -> list[str]:
    """The name of each CUDA device, asked of PyTorch in a job where the app has no torch."""
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def choices(simulated: Sequence[int] = (1,)) -> dict[str, str]:
    """What can be chosen, and how to say it; the most telling first.

    Args:
        simulated: how many simulated accelerators the program can use, all of them.
    """
    names = _cuda()
    cuda = {f"cuda:{index}": f"{name} (cuda:{index})" for index, name in enumerate(names)}
    if len(names) in simulated and len(names) > 1:
        cuda["cuda"] = f"All {len(names)} CUDA devices"
    sims = {
        f"sim{count}": "Simulated accelerator" if count == 1 else f"{count} simulated accelerators"
        for count in simulated
    }
    return {**cuda, **sims, "cpu": "CPU"}


def _cuda() -> list[str]:
    global _found
    if _found is None:
        # No driver, no device: the answer then costs nothing.
        _found = run(".devices:cuda_names", seconds=60) if _driver() else []
    return _found


def _driver() -> bool:
    if sys.platform != "linux":
        return sys.platform == "win32"
    from pathlib import Path

    return Path("/proc/driver/nvidia").exists() or Path("/dev/kfd").exists()


@contextlib.contextmanager
def use(choice: str) -> Iterator[list[torch.device]]:
    """The devices of one of `choices()`, for a block.

    Raises:
        ValueError: for something that is not among `choices()`.
    """
    import torch

    from graphviz_torch import simulate_accelerator

    cuda = {f"cuda:{index}" for index in range(torch.cuda.device_count())}
    if choice in {f"sim{count}" for count in SIMULATED}:
        with simulate_accelerator(int(choice[3:])) as devices:
            yield devices
    elif choice == "cuda" and cuda:
        yield [torch.device("cuda", index) for index in range(len(cuda))]
    elif choice == "cpu" or choice in cuda:
        yield [torch.device(choice)]
    else:
        raise ValueError(f"device {choice!r} is not among {', '.join(choices(SIMULATED))}.")
