"""Name a cut after the call that made it, or after the context that disabled gradients."""

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
from ..program.tracking import public_name

DETACHING_CALLS = ("detach", "detach_", "data")
READS = {"item", "tolist", "numpy", "float", "int", "bool", "complex", "index", "array"}
# Calls that read values from the first tensor, and a shape, dtype or device from the second.
_READ_FIRST = {"expand_as", "reshape_as", "resize_as_", "to", "type_as", "view_as"}
_DISTRIBUTIONS = str(Path(torch.distributions.__file__).parent) + os.sep
_RUN_WITHOUT_GRAD = {  # functions that run under no_grad by themselves
    torch.utils.checkpoint.CheckpointFunction.forward.__code__: "checkpoint",
    torch.nested.nested_tensor.__code__: "nested_tensor",
}


def cut_name(func: Any, made: list[Tensor]) -> str:
    """Return the name of a cut (a call that passes no gradient); "" for any other call.

    Args:
        func: the called function.
        made: results of the call that require no gradient; [] if the call read into Python.
    """
    if func in METADATA_CALLS:
        return ""
    name = public_name(func)
    if name in ("get", "_get_data_attr"):  # the getter of `Tensor.data`
        name = "data"
    if not made:
        return name if name in READS else ""
    if name.startswith(("register", "set")):
        return ""
    if name not in DETACHING_CALLS and not torch.is_grad_enabled():
        if name_of_pytorch := _switched_off_by(sys._getframe(3)):
            return name_of_pytorch
        return "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
    return name


def tensors_read(func: Any, given: list[Tensor]) -> list[Tensor]:
    """Return the tensors among a call's arguments whose values, not only metadata, it reads.

    `zeros_like` reads no values, and `expand_as` reads those of its first argument.

    Args:
        func: the called function.
        given: the tensors among the call's arguments.
    """
    name = public_name(func)
    if name.endswith("_like") or name.startswith("new_"):
        return []
    return given[:1] if name in _READ_FIRST else given


def detached_results(given: list[Tensor], made: list[Tensor]) -> list[Tensor] | None:
    """Return those results of a call that may be detached from the call's arguments.

    The list is empty if the call returned no tensor, as a read into Python does. None means that
    the call is not a cut.

    Args:
        given: arguments of the call, at least one of which requires a gradient.
        made: results of the call.
    """
    if not any(tensor.requires_grad for tensor in made):
        return made
    # Integer results, such as the indices of topk, cannot require a gradient.
    found = [t for t in made if not (t.requires_grad or torch.is_floating_point(t))]
    # If an argument has integers, the integer results may depend on this argument alone.
    return found if found and all(torch.is_floating_point(t) for t in given) else None


def _switched_off_by(frame: FrameType | None) -> str:
    """Return the name of a PyTorch function around `frame` that disables gradients itself.

    An example is the `sample()` of a distribution. Returns "" if no such function is running.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "sample" and code.co_filename.startswith(_DISTRIBUTIONS):
            return "sample"
        if code in _RUN_WITHOUT_GRAD:
            return _RUN_WITHOUT_GRAD[code]
        frame = frame.f_back
    return ""


def caller_of_checkpoint(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called a reentrant checkpoint; None if there is none."""
    while frame is not None and _RUN_WITHOUT_GRAD.get(frame.f_code) != "checkpoint":
        frame = frame.f_back
    return None if frame is None else frame.f_back
