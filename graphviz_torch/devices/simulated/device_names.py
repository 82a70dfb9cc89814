"""The simulated devices of a thread, and their names.

A program names device k as `simulate_accelerator` yields it: `torch.device("meta", 64 + k)`, or
"cuda:k" where it simulates CUDA. PyTorch's C++ knows it by its place, a device of type "meta" in
both cases: every build of PyTorch has those, and nothing else uses the index.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...internals.tensors.metadata import DEVICE_LABELS

CPU = torch.device("cpu")
LIMIT = 32  # devices of a name: an index is a signed byte
_FIRST = {"sim": 64, "cuda": 96}  # index of the first place; true meta tensors have a small one


class Block:
    """An open `simulate_accelerator()`: its devices as the program names them.

    Args:
        name: "sim" or "cuda".
        count: number of devices.
    """

    def __init__(self, name: str, count: int) -> None:
        first = _FIRST[name]
        self.name = name
        self.places = [torch.device("meta", first + k) for k in range(count)]
        self.devices = list(map(program_device, self.places))
        self.current = 0  # index of the device that "cuda" means
        self.stream: Any = None  # that `torch.cuda.set_stream` was given
        self.mode: Any = None  # sees calls into torch in the thread of the block

    def labels(self) -> dict[torch.device, str]:
        """Names of the devices in graphs, for both names of each."""
        prefix = "sim " if self.name == "cuda" else "sim:"
        shown = [f"cuda:{k}" if self.name == "cuda" else str(k) for k in range(len(self.places))]
        rows = zip(self.places, self.devices, shown, strict=True)
        return {device: prefix + text for *pair, text in rows for device in pair}


class _Here(threading.local):
    """Blocks that are open in the calling thread, the innermost last."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []


_HERE = _Here()
_CUDA: list[Block] = []  # blocks of all threads that simulate CUDA


def simulated_devices() -> list[torch.device]:
    """Return the devices of the innermost `simulate_accelerator()` block of this thread."""
    return list(_HERE.blocks[-1].devices) if _HERE.blocks else []


def innermost_block() -> Block | None:
    """Return the innermost block of this thread, if there is one."""
    return _HERE.blocks[-1] if _HERE.blocks else None


def cuda_block() -> Block | None:
    """Return the innermost block of this thread that simulates CUDA, if there is one."""
    return next((block for block in reversed(_HERE.blocks) if block.name == "cuda"), None)


@contextmanager
def opened(block: Block) -> Iterator[None]:
    """Make the devices of a block those of this thread."""
    blocks = _HERE.blocks  # also where another thread ends the block of this one
    cuda = [block] * (block.name == "cuda")
    labels = block.labels()
    try:
        blocks.append(block)
        _CUDA.extend(cuda)
        DEVICE_LABELS.update(labels)
        yield
    finally:
        blocks[:] = [each for each in blocks if each is not block]
        _CUDA[:] = [each for each in _CUDA if each is not block]
        if not _CUDA:  # "cuda:0" is a GPU again; graphs that are read later still have the places
            for device in [device for device in DEVICE_LABELS if device.type == "cuda"]:
                del DEVICE_LABELS[device]


def is_place(device: Any) -> bool:
    """Return True for a simulated device as PyTorch's C++ knows it."""
    first = _FIRST["sim"]
    return (
        isinstance(device, torch.device) and device.type == "meta" and (device.index or 0) >= first
    )


def is_simulated(device: Any) -> bool:
    """Return True for a device that `simulate_accelerator()` yields, or its place."""
    return is_place(device) or (
        isinstance(device, torch.device) and device.type == "cuda" and bool(_CUDA)
    )


def program_device(place: torch.device) -> torch.device:
    """Return the device of a place as a program names it.

    >>> program_device(torch.device("meta", 97))
    device(type='cuda', index=1)
    """
    first = _FIRST["cuda"]
    if is_place(place) and place.index >= first:
        return torch.device("cuda", place.index - first)
    return place


def error_name(device: torch.device) -> str:
    """Return a device's name in messages that are PyTorch's own: "cuda:0", "sim:0", "cpu"."""
    device = program_device(device)
    return str(device) if device.type != "meta" else DEVICE_LABELS.get(device) or str(device)


def place_of(device: Any) -> Any:
    """Return the place that a program means; what means no simulated CUDA device, unchanged.

    Args:
        device: a `torch.device`, a string or an index, as PyTorch's functions take them.

    Raises:
        RuntimeError: for a CUDA device that is not simulated.
    """
    block = cuda_block()
    if block is None:
        return device
    kind = type(device)
    if kind is int:
        index: int | None = device
    elif kind is str and device.partition(":")[0] == "cuda":
        index = torch.device(device).index
    elif kind is torch.device and device.type == "cuda":
        index = device.index
    else:
        return device
    if index is None:
        return block.places[block.current]
    if not 0 <= index < len(block.places):
        names = ", ".join(map(str, block.devices))
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: cuda:{index}, and simulated are {names}."
        )
    return block.places[index]


@contextmanager
def current_device(device: torch.device) -> Iterator[None]:
    """Let "cuda" mean this device, where CUDA is simulated."""
    block = cuda_block()
    if block is None or device.type != "cuda":
        yield
        return
    before, block.current = block.current, block.places.index(place_of(device))
    try:
        yield
    finally:
        block.current = before
