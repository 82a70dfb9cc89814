"""Names of cuts: the call that made the cut, or the context that disabled gradients."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributions
import torch.nested
import torch.utils.checkpoint
from torch import Tensor

from ...internals.functions import METADATA_CALLS
from ..program.tracking import name_of

PLAIN = ("detach", "detach_", "data")
READS = {"item", "tolist", "numpy", "float", "int", "bool", "complex", "index", "array"}
_DISTRIBUTIONS = str(Path(torch.distributions.__file__).parent) + os.sep
_RUN_WITHOUT = {
    torch.utils.checkpoint.CheckpointFunction.forward.__code__: "checkpoint",
    torch.nested.nested_tensor.__code__: "nested_tensor",
}


def cut_name(func: Any, made: list[Tensor]) -> str:
    """Return the name of a cut; "" for a call that is not a cut, though its result requires no
    gradient.
    """
    if func in METADATA_CALLS:
        return ""
    name = name_of(func)
    if name in ("get", "_get_data_attr"):  # a property: `data` alone gets here
        name = "data"
    if not made:
        return name if name in READS else ""
    if name.startswith(("register", "set")):
        return ""
    if name not in PLAIN and not torch.is_grad_enabled():
        if name_of_pytorch := _switched_off_by(sys._getframe(3)):
            return name_of_pytorch
        return "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
    return name


def makes_alike(func: Any) -> bool:
    """Return True if a call takes the metadata of its first tensor and none of its values:
    `zeros_like(x)`.
    """
    name = name_of(func)
    return name.endswith("_like") or name.startswith("new_")


def results_cut(given: list[Tensor], made: list[Tensor]) -> list[Tensor] | None:
    """Return the results of a call that a cut may detach: [] for a read, None if there are none.

    Args:
        given: what it took, where one needs a gradient.
        made: what it gave.
    """
    if not any(tensor.requires_grad for tensor in made):
        return made
    # Beside values with a gradient, what can have none: the indices of topk.
    found = [t for t in made if not (t.requires_grad or torch.is_floating_point(t))]
    # What was an integer before is cut off from nothing.
    return found if found and all(torch.is_floating_point(t) for t in given) else None


def _switched_off_by(frame: FrameType | None) -> str:
    """Return the PyTorch function that runs under no_grad by itself: sample() of a distribution,
    and the like.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "sample" and code.co_filename.startswith(_DISTRIBUTIONS):
            return "sample"
        if code in _RUN_WITHOUT:
            return _RUN_WITHOUT[code]
        frame = frame.f_back
    return ""
