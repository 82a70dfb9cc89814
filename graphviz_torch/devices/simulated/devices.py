"""Define the devices that a thread simulates: their names, and the bytes of the tensors on them.

In a program, device k is the `torch.device("meta", 64 + k)` that `simulate_accelerator` yields, or
"cuda:k" if CUDA is simulated. PyTorch's C++ code sees the *place* of device k: a device of type
"meta", with index 64 + k in the first case and 96 + k in the second. Every build of PyTorch has the
device type "meta", and no other code uses these indices.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...internals.tensors.metadata import DEVICE_LABELS

CPU = torch.device("cpu")
MAX_DEVICES = 32  # of each name, because a device index is at most 127
_FIRST_INDEX = {"sim": 64, "cuda": 96}  # index of the first place (see above)


class SimulatedBlock:
    """The state of one open `with simulate_accelerator()` block.

    Args:
        name: "sim" or "cuda".
        count: number of devices.
    """

    def __init__(self, name: str, count: int) -> None:
        first = _FIRST_INDEX[name]
        self.name = name
        self.places = [torch.device("meta", first + k) for k in range(count)]
        self.devices = list(map(program_device, self.places))
        self.current = 0  # index of the device that "cuda" refers to
        self.stream: Any = None  # last argument of `torch.cuda.set_stream`
        self.mode: Any = None  # function mode of the block's thread

    def labels(self) -> dict[torch.device, str]:
        """Return (device in the program, or its place) -> name in graphs, such as "sim:0"."""
        prefix = "sim " if self.name == "cuda" else "sim:"
        shown = [f"cuda:{k}" if self.name == "cuda" else str(k) for k in range(len(self.places))]
        rows = zip(self.places, self.devices, shown, strict=True)
        return {device: prefix + text for *pair, text in rows for device in pair}


class _OpenBlocks(threading.local):
    """The open blocks of the current thread, the innermost last."""

    def __init__(self) -> None:
        self.blocks: list[SimulatedBlock] = []


_OPEN = _OpenBlocks()
_CUDA: list[SimulatedBlock] = []  # blocks of all threads that simulate CUDA


def simulated_devices() -> list[torch.device]:
    """Return the devices of the innermost `simulate_accelerator()` block of this thread."""
    return list(_OPEN.blocks[-1].devices) if _OPEN.blocks else []


def innermost_block() -> SimulatedBlock | None:
    """Return the innermost block of this thread, if there is one."""
    return _OPEN.blocks[-1] if _OPEN.blocks else None


def cuda_block() -> SimulatedBlock | None:
    """Return the innermost block of this thread that simulates CUDA, if there is one."""
    return next((block for block in reversed(_OPEN.blocks) if block.name == "cuda"), None)


@contextmanager
def register_block(block: SimulatedBlock) -> Iterator[None]:
    """Make the block's devices the simulated devices of this thread."""
    blocks = _OPEN.blocks  # another thread may leave the block, so remember this list
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
        if not _CUDA:  # "cuda:0" is a real GPU again; names of places can be kept
            for device in [device for device in DEVICE_LABELS if device.type == "cuda"]:
                del DEVICE_LABELS[device]


def is_place(device: Any) -> bool:
    """Return True if a device is the place of a simulated device."""
    first = _FIRST_INDEX["sim"]
    return (
        isinstance(device, torch.device) and device.type == "meta" and (device.index or 0) >= first
    )


def is_simulated(device: Any) -> bool:
    """Return True if a device is a simulated device or the place of one."""
    return is_place(device) or (
        isinstance(device, torch.device) and device.type == "cuda" and bool(_CUDA)
    )


def program_device(place: torch.device) -> torch.device:
    """Return the device in the program for a place.

    >>> program_device(torch.device("meta", 97))
    device(type='cuda', index=1)
    """
    first = _FIRST_INDEX["cuda"]
    if is_place(place) and place.index >= first:
        return torch.device("cuda", place.index - first)
    return place


def error_name(device: torch.device) -> str:
    """Return a device's name for error messages: "cuda:0", "sim:0" or "cpu"."""
    device = program_device(device)
    return str(device) if device.type != "meta" else DEVICE_LABELS.get(device) or str(device)


def place_of(device: Any) -> Any:
    """Return the place of a simulated CUDA device. Any other value is returned unchanged.

    Args:
        device: a `torch.device`, a name or an index, as PyTorch's functions accept them.

    Raises:
        RuntimeError: if CUDA is simulated, but not the device with this index.
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
            f"CUDA error: invalid device ordinal: cuda:{index}. Simulated devices: {names}."
        )
    return block.places[index]


@contextmanager
def current_device(device: torch.device) -> Iterator[None]:
    """Make this device the current CUDA device in the `with` block, if CUDA is simulated."""
    block = cuda_block()
    if block is None or device.type != "cuda":
        yield
        return
    before, block.current = block.current, block.places.index(place_of(device))
    try:
        yield
    finally:
        block.current = before


ALLOCATED: Counter[torch.device] = Counter()  # place -> bytes
PEAK: Counter[torch.device] = Counter()  # place -> bytes
_STORAGES: dict[int, Any] = {}  # id -> weak reference to a counted storage


def count(storage: torch.UntypedStorage, place: torch.device) -> None:
    """Count the bytes of a storage for a device until the storage is freed.

    Args:
        storage: the storage of the CPU tensor.
        place: the place of the simulated device.
    """
    key, nbytes = id(storage), storage.nbytes()
    known = _STORAGES.get(key)
    if known is not None and known() is storage:
        return

    def on_free(_: Any) -> None:
        _STORAGES.pop(key, None)
        ALLOCATED[place] -= nbytes

    _STORAGES[key] = weakref.ref(storage, on_free)
    ALLOCATED[place] += nbytes
    PEAK[place] = max(PEAK[place], ALLOCATED[place])


def reset_peak(place: torch.device) -> None:
    """Set the peak of a device to its current number of bytes."""
    PEAK[place] = ALLOCATED[place]
