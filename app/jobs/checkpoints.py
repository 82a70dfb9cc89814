"""Jobs of the Checkpoints page: save a model, load a file into one, and compare the two models."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphviz_torch import record
from graphviz_torch.checkpoint import (
    compare_checkpoint,
    graph_path_for,
    load_checkpoint,
    save_checkpoint,
)
from graphviz_torch.compare import compare_models

from . import devices
from .backward import build, open_own_recording
from .values import LoadedCheckpoint, SavedCheckpoint

_TOLERANCE = 1e-4  # relative difference, because devices sum in different orders


def save(model: str, device: str, suffix: str) -> SavedCheckpoint:
    """Save a gallery model after one backward, together with its graph.

    Args:
        model: name of the gallery model.
        device: the argument of `devices.use`.
        suffix: suffix of the file, such as ".pt".
    """
    with devices.use(device) as found, tempfile.TemporaryDirectory() as folder:
        module, loss = build(model, found, 0)
        with record(module) as recording:
            torch.autograd.backward(loss())
        path = save_checkpoint(module, Path(folder) / f"{model}{suffix}", graph=recording.graph)
        state: dict[str, Any] = torch.load(path) if suffix == ".pt" else load_checkpoint(path)
        tensors = tuple((name, _meta(tensor)) for name, tensor in state.items())
        return SavedCheckpoint(
            path.name, path.read_bytes(), graph_path_for(path).read_bytes(), tensors
        )


def load(name: str, data: bytes, into: str, device: str, disturb: bool) -> LoadedCheckpoint:
    """Load a file into a new gallery model, and compare this model with the original one.

    With `disturb`, one value is changed after loading, so that the comparison finds a difference.

    Args:
        name: name of the visitor's file.
        data: content of the file.
        into: name of the gallery model.
        device: the argument of `devices.use`.
        disturb: whether to change one value after loading.
    """
    with devices.use(device) as found, tempfile.TemporaryDirectory() as folder:
        # Only the suffix of the visitor's file name is used.
        path = Path(folder) / f"checkpoint{_suffix(name)}"
        path.write_bytes(data)
        original, loss = build(into, found, 0)
        restored, _ = build(into, found, 1)
        inputs = _inputs(original, loss)
        try:
            value = load_checkpoint(path)
            differences = compare_checkpoint(restored, value)
            if not differences.fits:
                return LoadedCheckpoint(differences=str(differences))
            load_checkpoint(path, restored)
        except (ValueError, TypeError) as error:
            return LoadedCheckpoint(error=str(error).replace(str(path), name))
        if disturb:
            with torch.no_grad():
                next(restored.parameters()).view(-1)[0].add_(0.01)
        verified = compare_models(original, restored, inputs, tolerance=_TOLERANCE)
        other = differences.dtypes or differences.devices
        return LoadedCheckpoint(
            fits=True,
            differences=str(differences) if other else "",
            same=bool(verified),
            verification=str(verified),
            first=verified.first.node if verified.first is not None else None,
            opened=open_own_recording(verified.graph),
        )


def _suffix(name: str) -> str:
    suffix = Path(name).suffix.lower()
    return suffix if suffix in (".pt", ".pth", ".bin", ".safetensors") else ".pt"


def _inputs(module: nn.Module, loss: Any) -> tuple[Any, ...]:
    """Return the arguments that the loss function passes to the module."""
    given: list[tuple[Any, ...]] = []
    hook = module.register_forward_pre_hook(lambda _, arguments: given.append(arguments))
    try:
        loss()
    finally:
        hook.remove()
    return given[0]


def _meta(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {tensor.device}"
