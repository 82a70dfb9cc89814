"""A cut as plain values, and live references to the makers of its operands."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from ...graph import TensorMeta
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...tracing.nodes import GradFn, grad_fn_of
from .names import DETACHING_CALLS


@dataclass(slots=True, eq=False)
class CutRecord:
    """One cut as plain values."""

    how: str
    tensor: TensorMeta
    labels: list[str]  # names of the operands that require a gradient
    place: CodePosition | None
    module: str
    in_forward: bool
    origin: weakref.ref[Origin]
    named: bool = True  # True if the operands' own names apply
    in_region: bool = False  # True if it is inside a region whose node is its operand
    read: str = ""  # the call that read the result into Python
    pending: bool = False  # True if it was read recently, so its use is unknown
    after: list[int] = field(default_factory=list)  # sequence numbers of its result's users

    @property
    def name(self) -> str:
        """Return the call that cut the gradient; "numpy" for a detach() that only serves
        numpy().
        """
        return (
            self.read if self.read and not self.after and self.how in DETACHING_CALLS else self.how
        )


class LiveCut(NamedTuple):
    """A cut, with its live operands' names and makers, while a graph is read."""

    cut: CutRecord
    operands: list[tuple[str, GradFn]]


class Origin:
    """The makers of a cut's operands: nodes, or leaves themselves, which may have no node."""

    __slots__ = ("__weakref__", "cut", "operands")

    def __init__(self, operands: list[GradFn | Tensor]) -> None:
        self.operands = operands
        self.cut: CutRecord

    @property
    def of_leaves(self) -> bool:
        """Return True if all operands are leaves."""
        return all(issubclass(type(operand), Tensor) for operand in self.operands)


def operand_makers(cuts: Iterable[LiveCut]) -> list[GradFn]:
    """Return the distinct makers of the cuts' operands."""
    return list(dict.fromkeys(fn for _, operands in cuts for _, fn in operands))


def leaf_or_maker(tensor: Tensor) -> Tensor | GradFn:
    """Return a leaf itself, or the node that created a tensor.

    A leaf's node is not used, because a reference to it counts as an owner. A view taken under
    no_grad has no node; the node of its base is used.
    """
    base = tensor._base if tensor.is_leaf and TensorBase._is_view(tensor) else None
    tensor = tensor if base is None else base
    return tensor if tensor.is_leaf else grad_fn_of(tensor)
