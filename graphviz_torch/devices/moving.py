"""List devices, and move a whole structure of objects to one of them."""

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
    """Return the CPU, all GPUs and, inside `simulate_accelerator()`, the simulated devices.

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
    """Return the same structure with its tensors on a device.

    A container is copied if something in it moved. Modules and optimizers move in place, as with
    `nn.Module.to`, including gradients and the optimizer's state. References to one tensor, tied
    weights and views still share memory afterwards. A leaf stays a leaf.

    Args:
        tree: a tensor, module, optimizer, DataLoader (its batches will be moved), an object with a
            method `to`, or dicts, lists, tuples, sets, dataclasses and namespaces of these. For all
            variables of a script: `globals().update(to_device(globals(), "cuda"))`.
        device: as for `Tensor.to`, or the name of a simulated device: "sim:0".
        numbers: also turn int, float, complex and bool into tensors.
        report: called once with a `Moves`, which lists what moved and what stayed: `report=print`.

    Raises:
        RuntimeError: if the device does not exist.

    >>> import torch
    >>> from graphviz_torch import simulate_accelerator
    >>> x = torch.ones(2, 3)
    >>> with simulate_accelerator():
    ...     moved = to_device({"x": x, "row": x[0], "n": 3}, "sim:0", report=print)
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
    """Move all local variables of the caller to a device, and rebind them.

    Variables of enclosing functions that the caller uses are rebound too.

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
    if sys.version_info < (3, 13):  # before 3.13, `f_locals` is a copy that must be written back
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return mover.report()


def find_device(device: torch.device | str | int) -> torch.device:
    """Return the device with this name: "cuda" is the current GPU, "sim:0" a simulated device.

    Raises:
        RuntimeError: as torch does, and for a simulated device outside `simulate_accelerator()`.
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
