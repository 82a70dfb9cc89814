"""The devices that a visitor can choose."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..jobs.job import run
from .language import translated

_found: list[str] | None = None


def choices(simulated: Sequence[int] = (1,)) -> dict[str, str]:
    """Return a dict from each device that can be chosen to its title; GPUs come first.

    Args:
        simulated: the numbers of simulated accelerators to offer.
    """
    names = _cuda()
    cuda = {f"cuda:{index}": f"{name} (cuda:{index})" for index, name in enumerate(names)}
    if len(names) in simulated and len(names) > 1:
        cuda["cuda"] = translated("All {count} CUDA devices").format(count=len(names))
    one, several = "Simulated accelerator", "{count} simulated accelerators"
    sims = {
        f"sim{count}": translated(one if count == 1 else several).format(count=count)
        for count in simulated
    }
    return {**cuda, **sims, "cpu": "CPU"}


def _cuda() -> list[str]:
    global _found
    if _found is None:
        # Without a driver there is no GPU, so no job is started to find one.
        _found = run(".devices:cuda_names", seconds=60) if _driver() else []
    return _found


def _driver() -> bool:
    if sys.platform != "linux":
        return sys.platform == "win32"
    return Path("/proc/driver/nvidia").exists() or Path("/dev/kfd").exists()
