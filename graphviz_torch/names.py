"""What the caller calls each tensor: its variables, a dict it passes, or a module's parameters."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

Names = Mapping[str, Any] | torch.nn.Module | None

_PACKAGE = str(Path(__file__).parent)


def caller_names(names: Names, outputs: Any = None) -> list[tuple[str, torch.Tensor]]:
    """Pairs of name and tensor, the name to prefer first.

    Args:
        names: a dict (values that are modules give their parameters under "key.parameter"), a
            module, `{}` for no names; None reads the variables of the first caller outside this
            package: its locals, then, in a module's own frame, nothing more.

    Raises:
        TypeError: if `names` is none of these.
    """
    if names is None:
        frame = caller()
        return [] if frame is None else _of_mapping(frame.f_locals, skip_private=True)
    if isinstance(names, torch.nn.Module):
        return _of_module(names, "")
    if isinstance(names, Mapping):
        return _of_mapping(names)
    raise TypeError(
        f"names is a {type(names).__name__}; pass a dict of tensors by name, an nn.Module, "
        "{} for no names, or None to read the caller's variables."
    )


def caller() -> FrameType | None:
    """The frame of the first caller outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def _of_mapping(
    values: Mapping[str, Any], skip_private: bool = False
) -> list[tuple[str, torch.Tensor]]:
    pairs: list[tuple[str, torch.Tensor]] = []
    modules: list[tuple[str, torch.nn.Module]] = []
    for name, value in list(values.items()):
        if skip_private and str(name).startswith("_"):
            continue
        if isinstance(value, torch.Tensor):
            pairs.append((str(name), value))
        elif isinstance(value, torch.nn.Module):
            modules.append((str(name), value))
    for _, module in modules:
        pairs.extend(_of_module(module, ""))
    return pairs


def _of_module(module: torch.nn.Module, prefix: str) -> list[tuple[str, torch.Tensor]]:
    return [
        (prefix + name, tensor)
        for named in (module.named_parameters(), module.named_buffers())
        for name, tensor in named
    ]
