"""Tensors in a ".safetensors" file, where that package is installed.

The format has no shared tensors. Those that are the same memory, such as tied weights, are written
once and their other names kept in the file's metadata; other views are written as copies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..graph.text import type_text

_SAME = "same_tensors"  # metadata: JSON of {name: name of the tensor that it is}


def save_safetensors(state: Any, path: Path) -> None:
    """Write a flat dict of tensors.

    Raises:
        TypeError: for anything else.
        ImportError: where the package is missing, saying what to install.
    """
    save = _package().torch.save_file
    if not isinstance(state, Mapping):
        raise TypeError(f"A .safetensors file holds a dict of tensors, not {type_text(state)}.")
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"A .safetensors file holds tensors alone, and {name!r} is "
                f"{type_text(tensor)}. Save as .pt, or each part by itself."
            )
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and key in first:
            same[name] = first[key]
        else:
            first[key] = name
            kept[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    save(kept, path, {_SAME: json.dumps(same)})


def load_safetensors(path: Path, device: Any) -> dict[str, torch.Tensor]:
    """Read a dict of tensors onto a device.

    Raises:
        ValueError: if it is not such a file.
        ImportError: as `save_safetensors`.
    """
    package = _package()
    try:
        with package.safe_open(path, framework="pt", device=str(device or "cpu")) as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            same = json.loads((file.metadata() or {}).get(_SAME, "{}"))
    except package.SafetensorError as error:
        raise ValueError(f"{path} is not a .safetensors file: {error}") from error
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path}: its metadata {_SAME!r} is not JSON: {error}") from None
    if not isinstance(same, dict) or not all(isinstance(kept, str) for kept in same.values()):
        raise ValueError(f"{path}: its metadata {_SAME!r} is not an object of names.")
    return {**found, **{name: found[kept] for name, kept in same.items() if kept in found}}


def _package() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "A .safetensors file needs the package of that name: pip install safetensors"
        ) from error
    return safetensors
