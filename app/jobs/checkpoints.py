"""Jobs of the Checkpoints page: save a model, load a file into one, verify that both agree."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app import gallery
from app.jobs import choices as devices
from graphviz_torch import (
    CheckpointDiff,
    Verification,
    compare_checkpoint,
    graph_beside,
    load_checkpoint,
    record,
    save_checkpoint,
    verify,
)

FORMATS = {"PyTorch (.pt)": ".pt", "safetensors (.safetensors)": ".safetensors"}
_AGREE = 1e-4  # relative: devices add up in another order


@dataclass(frozen=True)
class Saved:
    """A checkpoint as bytes, the graph that lies beside it, and the code that does the same."""

    name: str
    data: bytes
    graph: bytes
    tensors: tuple[tuple[str, str], ...]  # name, and shape, dtype and device


@dataclass(frozen=True)
class Loaded:
    """How a file fits a model, and whether the model then does the same as before."""

    differences: CheckpointDiff | None = None
    verification: Verification | None = None
    error: str = ""


def save(model: str, device: str, suffix: str) -> Saved:
    """A model of the gallery after one backward, saved with its graph."""
    with devices.use(device) as found, tempfile.TemporaryDirectory() as folder:
        module, loss = gallery.model(model).build(found, 0)
        with record(module) as recording:
            torch.autograd.backward(loss())
        path = save_checkpoint(module, Path(folder) / f"{model}{suffix}", graph=recording.graph)
        state: dict[str, Any] = torch.load(path) if suffix == ".pt" else load_checkpoint(path)
        tensors = tuple((name, _meta(tensor)) for name, tensor in state.items())
        return Saved(path.name, path.read_bytes(), graph_beside(path).read_bytes(), tensors)


def load(name: str, data: bytes, into: str, device: str, disturb: bool) -> Loaded:
    """Load a file into a fresh model of the gallery, and verify it against the original.

    `disturb` changes one value after loading, to show how that is found.
    """
    with devices.use(device) as found, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name
        path.write_bytes(data)
        original, loss = gallery.model(into).build(found, 0)
        restored, _ = gallery.model(into).build(found, 1)
        inputs = _inputs(original, loss)
        try:
            value = load_checkpoint(path)
            differences = compare_checkpoint(restored, value)
            if not differences.fits:
                return Loaded(differences)
            load_checkpoint(path, restored)
        except (ValueError, TypeError) as error:
            return Loaded(error=str(error).replace(str(path), name))
        if disturb:
            with torch.no_grad():
                next(restored.parameters()).view(-1)[0].add_(0.01)
        return Loaded(differences, verify(original, restored, inputs, tolerance=_AGREE))


def _inputs(module: nn.Module, loss: Any) -> tuple[Any, ...]:
    """What the loss gives to the module."""
    seen: list[tuple[Any, ...]] = []
    hook = module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments))
    try:
        loss()
    finally:
        hook.remove()
    return seen[0]


def _meta(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {tensor.device}"
