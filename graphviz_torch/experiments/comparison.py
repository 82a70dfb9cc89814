"""What differs of each result between the two runs, and which operator it comes from.

A result keeps its lanes if what differs lies, along one of its dimensions, in what belongs to the
samples or positions that were changed. A dimension whose size is a multiple of their number may
hold them at any place: 6 rows of 3 samples are (3, 2) or (2, 3).
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from ..internals.frames import CodePosition
from ..internals.replay.side_by_side import Compared
from ..internals.tensors.memory import elements, has_memory

_TAKES = ("nll_loss", "gather", "index", "embedding", "take")
_FIRST = 16  # operators of which it is told how much differs


class Row(NamedTuple):
    """What an operator's results have to do with the change."""

    number: int
    name: str  # "softmax"
    makers: frozenset[int]  # operators that its operands come from
    keeps: bool | None  # does it keep the lanes; None: it has no dimension for them
    share: float  # of its elements that differ
    change: float  # largest difference, relative to the largest value
    is_integer: bool
    is_random: bool
    crosses: bool  # do all pairs of lanes meet in it, as in a matrix of similarities
    even: bool  # is an operand that does not differ all zero; of an indexed one, all equal
    square: bool  # is one a matrix from lanes to lanes, as of a graph
    module: str
    classes: str
    place: CodePosition | None
    user_place: CodePosition | None
    functions: tuple[str, ...]
    node: int


def difference(first: Tensor, other: Tensor) -> Tensor | None:
    """Which elements differ; None where they cannot be read."""
    a, b = readable(first), readable(other)
    if a is None or b is None or a.shape != b.shape:
        return None
    differs = a != b
    if (a.is_floating_point() or a.is_complex()) and bool(a.sum().isnan()):  # of some element
        differs &= ~(a.isnan() & b.isnan())
    return differs


def readable(tensor: Tensor) -> Tensor | None:
    """A plain tensor with the values of this one."""
    found = [tensor] if has_memory(tensor) else elements(tensor).tensors
    if len(found) != 1:
        return None
    return found[0].detach() if found[0].requires_grad else found[0]


def relative(first: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value; of integers 1."""
    a, b = readable(first), readable(other)
    if a is None or b is None or not a.is_floating_point() or not a.numel():
        return 1.0
    most, size = _largest(a - b), max(_largest(a), _largest(b))
    if not isfinite(most) or not isfinite(size):  # some value is infinite, or none
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
    """Does what differs lie in the allowed ones of `count` lanes, along some dimension.

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
        along = _any(differs, others)
        for block in reversed(_divisors(size // count)):  # whole samples, as most
            lanes = _any(along.reshape(-1, count, block), [0, 2]).tolist()
            if all(lane in allowed for lane, is_other in enumerate(lanes) if is_other):
                return True
    return found


def _any(truths: Tensor, dims: list[int]) -> Tensor:
    """As `truths.any(dims)`, of bytes: its kernel is many times as fast."""
    return truths.view(torch.uint8).amax(dims).view(torch.bool) if dims else truths


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, 512) + 1) if number % n == 0] + (
        [number] if number > 512 else []
    )


def crosses(differs: Tensor, count: int, allowed: Collection[int]) -> bool:
    """Is it a matrix of all lanes with all, which differs in the row or the column of a lane."""
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
    """Takes what a run tells, and keeps a row for each operator.

    Args:
        count: how many lanes there are; 0: they are not looked at.
        allowed: the lanes that may differ.
        in_pairs: a matrix of all lanes with all keeps them, as the scores of attention do.
        views: how much of a view differs is kept in `shares`, too.
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
        self.shares: dict[int, float] = {}  # by the node's number in the run
        self.same = 0  # results that do not differ
        self.last_same: Row | None = None

    def __call__(self, compared: Compared) -> bool:
        """Does this result differ."""
        if compared.is_view and not self._views:
            return True  # as what it views
        differs = difference(compared.first, compared.other)
        share = 1.0 if differs is None else _share(differs)
        if compared.node >= 0:
            self.shares[compared.node] = max(share, self.shares.get(compared.node, 0.0))
        if compared.is_view:
            return share > 0
        known = self.rows.get(compared.number)
        if known is not None and "rnn" in compared.name:  # its last state, which has no positions
            return share > 0
        kept = crossed = None
        if share and self.count and differs is not None:
            kept = keeps(differs, self.count, self.allowed)
            crossed = kept is False and crosses(differs, self.count, self.allowed)
            kept = True if crossed and self.in_pairs else kept
        # It is told of the first operators, and of where lanes are first not kept.
        told = len(self.rows) < _FIRST
        if self.count:
            before = (self.rows.get(maker) for maker in compared.makers)
            told = kept is False and all(row is None or row.keeps for row in before)
        row = row_of(
            compared,
            kept,
            share,
            relative(compared.first, compared.other) if share and told else 0.0,
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
        """Does what differs of a tensor surely lie in the lanes that may."""
        differs = difference(first, other)
        return differs is not None and keeps(differs, self.count, self.allowed) is True

    def origin(self, maker: int) -> tuple[Row, list[Row]] | None:
        """The first operator on the way to what `maker` wrote that did not keep its lanes.

        And those on the way from it.
        """
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
    compared: Compared,
    kept: bool | None,
    share: float,
    change: float,
    *,
    crossed: bool = False,
    count: int = 0,
    placed: bool = True,
) -> Row:
    """What is kept of an operator: these numbers, and where it is."""
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
    """An operator as people call it: "aten::_softmax" -> "softmax"."""
    return name.rpartition("::")[2].lstrip("_").removeprefix("native_")


def _worse(a: Row, b: Row) -> Row:
    if a.keeps is False or (a.keeps is True and b.keeps is None):
        return a
    return b._replace(share=max(a.share, b.share), node=max(a.node, b.node))


def _share(differs: Tensor) -> float:
    return float(torch.count_nonzero(differs)) / differs.numel() if differs.numel() else 0.0


def _is_even(tensor: Tensor, operator: str) -> bool:
    """Is it all zero; all equal where an operator takes some of its elements."""
    plain = readable(tensor)
    if plain is None or not plain.numel():
        return False
    if any(word in operator for word in _TAKES) and plain.numel() > 1:
        return bool((plain == plain.flatten()[0]).all())
    return not bool(plain.any())


def _is_square(tensor: Tensor, count: int) -> bool:
    return tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1] == count > 0
