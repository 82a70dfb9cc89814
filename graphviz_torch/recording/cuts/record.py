"""A cut as plain values, with live references to the makers of its operands."""

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
from .names import PLAIN


@dataclass(slots=True, eq=False)
class CutRecord:
    """One cut as plain values."""

    how: str
    tensor: TensorMeta
    labels: list[str]  # of the operands that need a gradient
    place: CodePosition | None
    module: str
    in_forward: bool
    origin: weakref.ref[Origin]
    named: bool = True  # is what the cut took called as its operands are
    in_region: bool = False  # does it stand inside the region whose node is its operand
    read: str = ""  # how the result was read into Python
    pending: bool = False  # was it read a short while ago: it may yet explain something
    after: list[int] = field(default_factory=list)  # numbers of the nodes that used the result

    @property
    def name(self) -> str:
        """Return the call that cut the gradient; "numpy" for a detach() that only serves
        numpy().
        """
        return self.read if self.read and not self.after and self.how in PLAIN else self.how


class LiveCut(NamedTuple):
    """A cut while a graph is read, with its known operands and their makers."""

    cut: CutRecord
    operands: list[tuple[str, GradFn]]


class Origin:
    """The makers of a cut's operands: nodes, and leaves themselves, which may have no node."""

    __slots__ = ("__weakref__", "cut", "operands")

    def __init__(self, operands: list[GradFn | Tensor]) -> None:
        self.operands = operands
        self.cut: CutRecord

    @property
    def of_leaves(self) -> bool:
        """Return True if all operands were leaves."""
        return all(issubclass(type(operand), Tensor) for operand in self.operands)


def behind(cuts: Iterable[LiveCut]) -> list[GradFn]:
    """Return the distinct makers of the cuts' operands."""
    return list(dict.fromkeys(fn for _, operands in cuts for _, fn in operands))


def leaf_or_maker(tensor: Tensor) -> Tensor | GradFn:
    """Return a leaf itself (its node would count as an owner), or the node that created a
    tensor.

    A view taken under no_grad has no node; its base's is used.
    """
    base = tensor._base if tensor.is_leaf and TensorBase._is_view(tensor) else None
    tensor = tensor if base is None else base
    return tensor if tensor.is_leaf else grad_fn_of(tensor)
