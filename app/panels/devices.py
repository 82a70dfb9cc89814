"""The devices that a visitor can choose."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..jobs.job import run
from .language import translated

_found: list[str] | None = None


def choices(simulated: Sequence[int] = (1,)) -> dict[str, str]:
    """What can be chosen, and how to say it; the most telling first.

    Args:
        simulated: how many simulated accelerators the program can use, all of them.
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
        # No driver, no device: the answer then costs nothing.
        _found = run(".devices:cuda_names", seconds=60) if _driver() else []
    return _found


def _driver() -> bool:
    if sys.platform != "linux":
        return sys.platform == "win32"
    return Path("/proc/driver/nvidia").exists() or Path("/dev/kfd").exists()
