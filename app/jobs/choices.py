"""The devices a visitor can choose, and a block in which they are there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from graphviz_torch import simulate_accelerator

_SIMULATED = (1, 2, 3, 4, 8)


def choices() -> dict[str, str]:
    """What can be chosen, and how to say it; the most telling first."""
    count = torch.cuda.device_count()
    cuda = {
        f"cuda:{index}": f"{torch.cuda.get_device_name(index)} (cuda:{index})"
        for index in range(count)
    }
    if count > 1:
        cuda["cuda"] = f"All {count} CUDA devices"
    simulated = {
        f"sim{count}": "Simulated accelerator" if count == 1 else f"{count} simulated accelerators"
        for count in _SIMULATED
    }
    return {**cuda, **simulated, "cpu": "CPU"}


@contextlib.contextmanager
def use(choice: str) -> Iterator[list[torch.device]]:
    """The devices of one of `choices()`, for a block.

    Raises:
        ValueError: for something that is not among `choices()`.
    """
    if choice not in choices():
        raise ValueError(f"device {choice!r} is not among {', '.join(choices())}.")
    if choice.startswith("sim"):
        with simulate_accelerator(int(choice[3:])) as devices:
            yield devices
    elif choice == "cuda":
        yield [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    else:
        yield [torch.device(choice)]
