"""Devices: which there are, and everything moved to one of them at once."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch

from ..internals.frames import caller_frame
from ..internals.tensors.metadata import DEVICE_LABELS
from .mover import Mover, Moves
from .simulated.device_names import is_simulated, simulated_devices


def available_devices() -> list[torch.device]:
    """The CPU, every GPU, and inside `simulate_accelerator()` the simulated ones.

    >>> available_devices()[0]
    device(type='cpu')
    """
    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps", 0))
    return devices + [each for each in simulated_devices() if each not in devices]


def to_device(
    tree: Any,
    device: torch.device | str | int,
    *,
    numbers: bool = False,
    report: Callable[[Moves], object] | None = None,
) -> Any:
    """The same structure with everything in it on a device.

    Containers are made anew where something in them moved. Modules and optimizers move in place,
    as `nn.Module.to` does, together with gradients and the optimizer's state. Two names of one
    tensor, tied weights and views share memory afterwards as before. A leaf stays a leaf.

    Args:
        tree: a tensor, module, optimizer, DataLoader (it then moves each batch), an object with a
            `to` of its own, or dicts, lists, tuples, sets, dataclasses and namespaces of these. For
            a script's own names: `globals().update(to_device(globals(), "cuda"))`.
        device: as for `Tensor.to`, or the name of a simulated device: "sim:0".
        numbers: make tensors of int, float, complex and bool too.
        report: called once with the `Moves`, what moved and what could not: `report=print`.

    Raises:
        RuntimeError: for a device that is not there.

    >>> import torch
    >>> from graphviz_torch import simulate_accelerator
    >>> x = torch.ones(2, 3)
    >>> with simulate_accelerator():
    ...     there = to_device({"x": x, "row": x[0], "n": 3}, "sim:0", report=print)
    x: float32[2, 3], 24 bytes, cpu -> sim:0
    row: float32[3], 0 bytes, cpu -> sim:0, shares memory with x
    2 moved, 24 bytes
    """
    mover = Mover(find_device(device), numbers)
    moved = mover.move(tree)
    if report is not None:
        report(mover.report())
    return moved


def move_locals(device: torch.device | str | int, *, numbers: bool = False) -> Moves:
    """Rebind the caller's own variables to what they are on a device.

    A variable of an enclosing function is rebound there too.

    Raises:
        RuntimeError: as `to_device`.

    >>> import torch
    >>> from graphviz_torch import simulate_accelerator
    >>> def step(device):
    ...     x, y = torch.ones(3), [torch.ones(2)]
    ...     move_locals(device)
    ...     return x.device == y[0].device == device
    >>> with simulate_accelerator() as [device]:
    ...     step(device)
    True
    """
    frame = caller_frame()
    if frame is None:
        raise RuntimeError("move_locals: no caller's variables to move.")
    variables = frame.f_locals
    mover = Mover(find_device(device), numbers)
    before = dict(variables)
    for name, value in mover.move(before).items():
        if value is not before[name]:
            variables[name] = value
    if sys.version_info < (3, 13):  # there `f_locals` of a function is a copy, to be written back
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return mover.report()


def find_device(device: torch.device | str | int) -> torch.device:
    """The device that a user means: "cuda" is the current GPU, "sim:0" a simulated device.

    Raises:
        RuntimeError: for a simulated device outside `simulate_accelerator()`, and as torch does.
    """
    simulated = {label: place for place, label in DEVICE_LABELS.items()}
    found = simulated[device] if device in simulated else torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if is_simulated(found) and found not in simulated_devices():
        raise RuntimeError(
            f"{device} is a simulated device: use it inside `with simulate_accelerator(...)`, "
            "with a count that includes it."
        )
    return found
