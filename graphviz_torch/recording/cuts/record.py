"""Store a cut as plain values, and separately the live nodes that created its operands."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import field
from typing import NamedTuple

from torch import Tensor

from ...graph import TensorMeta
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...tracing.nodes import GradFn, grad_fn_of
from .names import DETACHING_CALLS


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
