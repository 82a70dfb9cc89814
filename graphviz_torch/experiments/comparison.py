"""Compare each operator's result in two runs, and find the operator where a difference starts.

Lanes are samples or positions; some of them are perturbed. A result keeps its lanes if, along one
of its dimensions, only perturbed lanes differ. A dimension whose size is a multiple of the number
of lanes may have them as its outer or its inner part: 6 rows of 3 samples are (3, 2) or (2, 3).
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from ..internals.frames import CodePosition
from ..internals.replay.side_by_side import OperatorPair
from ..internals.tensors.memory import elements, has_memory

_TAKES = ("nll_loss", "gather", "index", "embedding", "take")
_MAX_MEASURED_OPERATORS = 16  # operators for which the size of the difference is computed


class Row(NamedTuple):
    """The result of comparing one operator."""

    number: int
    name: str  # the operator, as "softmax"
    makers: frozenset[int]  # operators that computed its operands
    keeps: bool | None  # True if it keeps the lanes; None if no dimension fits them
    share: float  # fraction of its elements that differ
    change: float  # largest difference, relative to the largest value
    is_integer: bool
    is_random: bool
    crosses: bool  # True if it combines all pairs of lanes, as a similarity matrix does
    even: bool  # True if an unchanged operand is all zero or, for indexing, constant
    square: bool  # True if an unchanged operand is a (lanes, lanes) matrix, as an adjacency matrix
    module: str
    classes: str
    place: CodePosition | None
    user_place: CodePosition | None
    functions: tuple[str, ...]
    node: int


def difference(first: Tensor, other: Tensor) -> Tensor | None:
    """Return which elements differ, or None if the tensors cannot be read."""
    a, b = readable(first), readable(other)
    if a is None or b is None or a.shape != b.shape:
        return None
    differs = a != b
    if (a.is_floating_point() or a.is_complex()) and bool(a.sum().isnan()):  # NaN in some element
        differs &= ~(a.isnan() & b.isnan())
    return differs


def readable(tensor: Tensor) -> Tensor | None:
    """Return a plain tensor with the values of `tensor`, or None if it cannot be read."""
    found = [tensor] if has_memory(tensor) else elements(tensor).tensors
    if len(found) != 1:
        return None
    return found[0].detach() if found[0].requires_grad else found[0]


def relative(first: Tensor, other: Tensor) -> float:
    """Return the largest difference relative to the largest value; 1.0 for integers."""
    a, b = readable(first), readable(other)
    if a is None or b is None or not a.is_floating_point() or not a.numel():
        return 1.0
    most, size = _largest(a - b), max(_largest(a), _largest(b))
    if not isfinite(most) or not isfinite(size):  # some values are not finite
        a, b = a.double(), b.double()
        finite = a.isfinite() & b.isfinite()
        if not bool(finite.any()):
            return 1.0
        a, b = a[finite], b[finite]
        most, size = _largest(a - b), max(_largest(a), _largest(b))
    return most / size if size else 0.0


def _largest(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, torch.inf))


def keeps(differs: Tensor, count: int, allowed: Collection[int]) -> bool | None:
    """Return whether, along some dimension, only allowed ones of `count` lanes differ.

    Returns None if no dimension is a multiple of `count`.

    >>> x = torch.zeros(6, 5, dtype=torch.bool)
    >>> x[0] = x[3] = True
    >>> keeps(x, 3, [0]), keeps(x.any(1), 2, [0]), keeps(x.any(0), 3, [0])
    (True, False, None)
    """
    found = None
    for dim, size in enumerate(differs.shape):
        if not size or size % count:
            continue
        found = False
        others = [d for d in range(differs.dim()) if d != dim]
        along = _any_on_bytes(differs, others)
        for block in reversed(_divisors(size // count)):  # outer lanes first, the common case
            lanes = _any_on_bytes(along.reshape(-1, count, block), [0, 2]).tolist()
            if all(lane in allowed for lane, is_other in enumerate(lanes) if is_other):
                return True
    return found


def _any_on_bytes(truths: Tensor, dims: list[int]) -> Tensor:
    """Return `truths.any(dims)`, computed on bytes, whose kernel is many times faster."""
    return truths.view(torch.uint8).amax(dims).view(torch.bool) if dims else truths


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, 512) + 1) if number % n == 0] + (
        [number] if number > 512 else []
    )


def crosses(differs: Tensor, count: int, allowed: Collection[int]) -> bool:
    """Return True if a matrix of lane pairs differs only in rows or columns of allowed lanes."""
    if differs.dim() < 2 or differs.shape[-1] % count or differs.shape[-2] % count:
        return False
    rest = differs.reshape(-1, *differs.shape[-2:]).any(0)
    lanes = [torch.arange(size, device=rest.device) for size in rest.shape]
    ok = torch.tensor(sorted(allowed), device=rest.device)
    for inner in (True, False):
        rows, columns = (
            ~torch.isin(lane % count if inner else lane // (len(lane) // count), ok)
            for lane in lanes
        )
        if not bool(rest[rows][:, columns].any()):
            return True
    return False


class Comparison:
    """Callback for `run_side_by_side` that keeps one row per operator.

    Args:
        count: number of lanes; 0 compares values only.
        allowed: the lanes that may differ.
        in_pairs: a matrix of all pairs of lanes keeps them, as attention scores do.
        views: also record in `shares` which fraction of a view differs.
    """

    def __init__(
        self,
        count: int = 0,
        allowed: Collection[int] = (),
        *,
        in_pairs: bool = False,
        views: bool = False,
    ) -> None:
        self._views = views
        self.count, self.allowed, self.in_pairs = count, allowed, in_pairs
        self.rows: dict[int, Row] = {}
        # Fraction of elements that differ, by index of the node in the run.
        self.shares: dict[int, float] = {}
        self.same = 0  # number of results that do not differ
        self.last_same: Row | None = None

    def __call__(self, compared: OperatorPair) -> bool:
        """Return True if the operator's result differs."""
        if compared.is_view and not self._views:
            return True  # a view differs like its base
        differs = difference(compared.first, compared.other)
        share = 1.0 if differs is None else _share(differs)
        if compared.node >= 0:
            self.shares[compared.node] = max(share, self.shares.get(compared.node, 0.0))
        if compared.is_view:
            return share > 0
        known = self.rows.get(compared.number)
        # The last state of an RNN, which has no positions.
        if known is not None and "rnn" in compared.name:
            return share > 0
        kept = crossed = None
        if share and self.count and differs is not None:
            kept = keeps(differs, self.count, self.allowed)
            crossed = kept is False and crosses(differs, self.count, self.allowed)
            kept = True if crossed and self.in_pairs else kept
        # The size of the difference is computed for the first operators, and where lanes first mix.
        measures = len(self.rows) < _MAX_MEASURED_OPERATORS
        if self.count:
            before = (self.rows.get(maker) for maker in compared.makers)
            measures = kept is False and all(row is None or row.keeps for row in before)
        row = row_of(
            compared,
            kept,
            share,
            relative(compared.first, compared.other) if share and measures else 0.0,
            crossed=bool(crossed),
            count=self.count,
            placed=kept is not True,
        )
        if not share:
            self.same += 1
            self.last_same = row
            return False
        self.rows[compared.number] = row if known is None else _worse(known, row)
        return True

    def keeps_lanes(self, first: Tensor, other: Tensor) -> bool:
        """Return True if two tensors differ only in the lanes that may differ."""
        differs = difference(first, other)
        return differs is not None and keeps(differs, self.count, self.allowed) is True

    def origin(self, maker: int) -> tuple[Row, list[Row]] | None:
        """Return the first operator upstream of `maker` that mixes lanes, and all that do."""
        path: dict[int, Row] = {}
        stack = [maker]
        while stack:
            number = stack.pop()
            row = self.rows.get(number)
            if row is None or number in path or row.keeps is True:
                continue
            path[number] = row
            stack.extend(row.makers)
        if not path:
            return None
        return path[min(path)], [path[n] for n in sorted(path)]


def row_of(
    compared: OperatorPair,
    kept: bool | None,
    share: float,
    change: float,
    *,
    crossed: bool = False,
    count: int = 0,
    placed: bool = True,
) -> Row:
    """Return the row of an operator."""
    place, user_place, functions = compared.lines() if placed else (None, None, ())
    return Row(
        compared.number,
        title(compared.name),
        compared.makers,
        kept,
        share,
        change,
        not (compared.first.is_floating_point() or compared.first.is_complex()),
        compared.is_random,
        crossed,
        not share and any(_is_even(t, compared.name) for t in compared.operands),
        count > 0 and any(_is_square(t, count) for t in compared.operands),
        compared.module,
        compared.classes,
        place,
        user_place,
        functions,
        compared.node,
    )


def title(name: str) -> str:
    """Return an operator's name without namespace and underscore: "aten::_softmax" -> "softmax"."""
    return name.rpartition("::")[2].lstrip("_").removeprefix("native_")


def _worse(a: Row, b: Row) -> Row:
    if a.keeps is False or (a.keeps is True and b.keeps is None):
        return a
    return b._replace(share=max(a.share, b.share), node=max(a.node, b.node))


def _share(differs: Tensor) -> float:
    return float(torch.count_nonzero(differs)) / differs.numel() if differs.numel() else 0.0


def _is_even(tensor: Tensor, operator: str) -> bool:
    """Return True if the tensor is all zero or, for an operator that selects elements, constant."""
    plain = readable(tensor)
    if plain is None or not plain.numel():
        return False
    if any(word in operator for word in _TAKES) and plain.numel() > 1:
        return bool((plain == plain.flatten()[0]).all())
    return not bool(plain.any())


def _is_square(tensor: Tensor, count: int) -> bool:
    return tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1] == count > 0
