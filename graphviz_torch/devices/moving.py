"""List the available devices, move models, batches and optimizers to one, and divide batches."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch

from ..graph import GraphLike, graph_of
from ..internals.frames import caller_frame
from ..internals.tensors.metadata import DEVICE_LABELS
from .mover import Mover, Moves
from .simulated.devices import is_simulated, simulated_devices


def available_devices() -> list[torch.device]:
    """Return the CPU, all GPUs, and the simulated devices inside `simulate_accelerator()`.

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
    """Return `tree` with all of its tensors on a device.

    Modules and optimizers are moved in place, as by `nn.Module.to`, with their gradients and the
    optimizer's state. A container is copied if one of its items moves. Tensors that share memory,
    such as tied weights and views, also share memory on the device. A leaf remains a leaf.

    Args:
        tree: a tensor, module, optimizer, DataLoader (its batches will be moved), or object with a
            method `to`; or a dict, list, tuple, set, dataclass or namespace of these. To move all
            variables of a script: `globals().update(to_device(globals(), "cuda"))`.
        device: as for `Tensor.to`, or the name of a simulated device, such as "sim:0".
        numbers: also turn int, float, complex and bool into tensors.
        report: function that is called once, with a list of the tensors that moved and the objects
            that stayed. `report=print` prints this list.

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
    """Move all local variables of the calling function to a device, and rebind them.

    Variables of enclosing functions are rebound, too, if the calling function uses them.

    Args:
        device: as for `to_device`.
        numbers: as for `to_device`.

    Returns:
        A report of the tensors that moved and of the objects that stayed.

    Raises:
        RuntimeError: if the device does not exist.

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
        raise RuntimeError(
            "move_locals was not called by a Python function, so there are no variables to move."
        )
    variables = frame.f_locals
    mover = Mover(find_device(device), numbers)
    before = dict(variables)
    for name, value in mover.move(before).items():
        if value is not before[name]:
            variables[name] = value
    if sys.version_info < (3, 13):  # `f_locals` is a copy: write it back to the frame
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return mover.report()


def find_device(device: torch.device | str | int) -> torch.device:
    """Return the device for a name: "cuda" is the current GPU, "sim:0" is a simulated device.

    Raises:
        RuntimeError: if torch does not know the name, or for a simulated device outside
            `simulate_accelerator()`.
    """
    simulated = {label: place for place, label in DEVICE_LABELS.items()}
    found = simulated[device] if device in simulated else torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if is_simulated(found) and found not in simulated_devices():
        raise RuntimeError(
            f"{device} is a simulated device that does not exist here: use it inside "
            "`with simulate_accelerator(count)`, with a larger count if needed."
        )
    return found


def batch_division(graph: GraphLike) -> list[tuple[str, int]]:
    """Return (device, number of samples) of each `nn.DataParallel` replica, in order.

    Both are read from the last Gather node of the graph, which concatenates the outputs of the
    replicas.

    Raises:
        ValueError: if the graph has no Gather node.

    >>> from graphviz_torch.graph import Edge, Graph, Node, TensorMeta
    >>> halves = [Node(i, "ViewBackward0", (TensorMeta((4, 2), "float32", f"cuda:{i}"),))
    ...           for i in range(2)]
    >>> whole = Node(2, "GatherBackward", (TensorMeta((8, 2), "float32", "cuda:0"),))
    >>> graph = Graph((*halves, whole), (Edge(0, 2, input_nr=0), Edge(1, 2, input_nr=1)), ((2, 0),))
    >>> batch_division(graph)
    [('cuda:0', 4), ('cuda:1', 4)]
    """
    graph = graph_of(graph)
    gathers = [node for node in graph.nodes if node.name == "GatherBackward"]
    if not gathers:
        raise ValueError(
            f"The graph ({len(graph.nodes)} nodes) has no GatherBackward: no model ran "
            "in nn.DataParallel on several devices."
        )
    parts = [
        graph.nodes[edge.source].outputs[edge.output_nr] for edge in graph.inputs()[gathers[-1].id]
    ]
    known = [part for part in parts if part is not None]
    whole = gathers[-1].outputs[0]
    if whole is None or not whole.shape:
        return [(part.device, 1) for part in known]
    sizes = [part.shape or (1,) for part in known]
    # The batch dimension is the one in which the sizes of the replicas' outputs add up to the size
    # of the gathered output.
    dim = next(d for d, n in enumerate(whole.shape) if sum(size[d] for size in sizes) == n)
    return [(part.device, size[dim]) for part, size in zip(known, sizes, strict=True)]
