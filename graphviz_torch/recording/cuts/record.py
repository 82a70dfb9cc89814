"""Name a cut, and store it as plain values, and separately the nodes that created its operands."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributions
import torch.nested
import torch.utils.checkpoint
from torch import Tensor

from ...graph import TensorMeta
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import CodePosition
from ...internals.functions import METADATA_CALLS, TensorBase
from ...internals.tensors.pytree import tensors
from ...tracing.nodes import GradFn, grad_fn_of
from ..program.tracking import public_name


@mutable(eq=False)
class CutRecord:
    """One cut (a call that passes no gradient), without references to tensors or nodes."""

    how: str
    tensor: TensorMeta
    labels: list[str]  # for each operand that requires a gradient, the name of its variable
    place: CodePosition | None
    module: str
    in_forward: bool
    origin: weakref.ref[CutOperands]
    named: bool = True  # False if the label "" is used for operands that are parameters
    in_region: bool = False  # True if the call is inside a region that torch.compile compiled
    constructs: bool = False  # True if its number was passed to torch.tensor in the same line
    read: str = ""  # name of the call that read the result into Python, if any
    pending: bool = False  # True if a number was read into Python, whose later use is unknown
    after: list[int] = field(default_factory=list)  # sequence numbers of nodes that use the result
    varies: bool = False  # True if a node uses the result otherwise than through a step function

    @property
    def name(self) -> str:
        """Return the name of the call that made the cut, such as "detach".

        For a detached tensor that was only read into Python, this is the call that read it: the
        name of `x.detach().numpy()` is "numpy". For a number that was passed to torch.tensor in the
        same line, it is "tensor".
        """
        if self.constructs:
            return "tensor"
        return (
            self.read if self.read and not self.after and self.how in DETACHING_CALLS else self.how
        )


class LiveCut(NamedTuple):
    """A cut (a call that passes no gradient), with the name and the node of each operand."""

    cut: CutRecord
    operands: list[tuple[str, GradFn]]


class CutOperands:
    """The operands of a cut: for each operand the node that created it, or a leaf itself."""

    __slots__ = ("__weakref__", "cut", "operands")

    def __init__(self, operands: list[GradFn | Tensor]) -> None:
        self.operands = operands
        self.cut: CutRecord

    @property
    def of_leaves(self) -> bool:
        """Return True if all operands of the cut are leaves."""
        return all(issubclass(type(operand), Tensor) for operand in self.operands)


def operand_makers(cuts: Iterable[LiveCut]) -> list[GradFn]:
    """Return the distinct nodes that created the operands of these cuts."""
    return list(dict.fromkeys(fn for _, operands in cuts for _, fn in operands))


def leaf_or_maker(tensor: Tensor) -> Tensor | GradFn:
    """Return the node that created a tensor, or the tensor itself if it is a leaf.

    For a leaf, its node is not returned, because a reference to the node would keep the leaf alive.
    A view taken under no_grad has no node, so the node of the view's base is returned.
    """
    base = tensor._base if tensor.is_leaf and TensorBase._is_view(tensor) else None
    tensor = tensor if base is None else base
    return tensor if tensor.is_leaf else grad_fn_of(tensor)


def node_with_constant(results: list[GradFn], start: int) -> int | None:
    """Return the first node of a call that has an operand without a gradient.

    Of the nodes that `kl_div(input, target)` creates, this is the product of target and input.

    Args:
        results: the nodes that created the call's results.
        start: sequence number of the call's first node.

    Returns:
        The node's sequence number; None if the call did not create such a node.
    """
    least: int | None = None
    met = set(results)
    waiting = [*met]
    for fn in waiting:
        number = fn._sequence_nr()
        if number < start:
            continue
        sources = [source for source, _ in fn.next_functions]
        if None in sources and (least is None or number < least):
            least = number
        new = {source for source in sources if source is not None} - met
        met |= new
        waiting += new
    return least


DETACHING_CALLS = ("detach", "detach_", "data")
MAX_OPERANDS = 32  # recorded operands per call; a call of an optimizer may take all parameters
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


def operands_with_gradient(arguments: Any) -> dict[GradFn, Tensor]:
    """Return the operands of a call that require a gradient, by the node that created them."""
    needing = [tensor for tensor in tensors(arguments) if tensor.requires_grad]
    found = {grad_fn_of(tensor): tensor for tensor in needing[:MAX_OPERANDS]}
    return {fn: tensor for fn, tensor in found.items() if fn is not None}
