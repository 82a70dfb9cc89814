"""Compare each operator's result in two runs, and find the operator where a difference begins.

A lane is one sample or one position. In the second run, the values of some lanes are changed. A
result keeps the lanes apart if it has a dimension along which it differs only for the changed
lanes. A dimension may combine lanes with something else: in a dimension of 6 rows for 3 samples, a
sample is 2 consecutive rows, or every third row.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite

import torch
from torch import Tensor

from ..graph.immutable import NamedTuple
from ..internals.frames import CodePosition
from ..internals.replay.side_by_side import OperatorPair
from ..internals.tensors.memory import elements, has_memory

_TAKES = ("nll_loss", "gather", "index", "embedding", "take")
_MAX_MEASURED_OPERATORS = (
    16  # number of operators for which `OperatorComparison.change` is computed
)


class OperatorComparison(NamedTuple):
    """The comparison of an operator's result in both runs."""

    number: int
    name: str  # name of the operator, such as "softmax"
    makers: frozenset[int]  # numbers of the operators that computed the operands
    keeps: bool | None  # whether only changed lanes differ; None if no dimension has lanes
    share: float  # fraction of the result's elements that differ
    change: float  # largest difference of two elements, relative to the largest value
    is_integer: bool
    is_random: bool
    crosses: bool  # True if the result is a matrix of all pairs of lanes, such as similarities
    even: bool  # True if results are equal only because an operand is zero or constant
    square: bool  # True if an unchanged operand has shape (lanes, lanes): an adjacency matrix
    module: str
    classes: str
    place: CodePosition | None
    user_place: CodePosition | None
    functions: tuple[str, ...]
    node: int


def difference(first: Tensor, other: Tensor) -> Tensor | None:
    """Return a bool tensor, True where elements differ, or None if the tensors cannot be compared.

    NaN equals NaN. The tensors cannot be compared if their shapes differ, or if one has no values.
    """
    a, b = readable(first), readable(other)
    if a is None or b is None or a.shape != b.shape:
        return None
    differs = a != b
    if (a.is_floating_point() or a.is_complex()) and bool(a.sum().isnan()):  # NaN in some element
        differs &= ~(a.isnan() & b.isnan())
    return differs


def readable(tensor: Tensor) -> Tensor | None:
    """Return a detached tensor with the values of `tensor`; None if the tensor has no values."""
    found = [tensor] if has_memory(tensor) else elements(tensor).tensors
    if len(found) != 1:
        return None
    return found[0].detach() if found[0].requires_grad else found[0]


def relative(first: Tensor, other: Tensor) -> float:
    """Return the largest difference of two elements, relative to the largest; 1.0 for integers."""
    a, b = readable(first), readable(other)
    if a is None or b is None or not a.is_floating_point() or not a.numel():
        return 1.0
    most, size = _largest(a - b), max(_largest(a), _largest(b))
    if not isfinite(most) or not isfinite(size):  # there is NaN or Inf
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
    """Return whether a tensor differs only in allowed lanes (samples or positions).

    Returns None if no dimension can consist of lanes, because no size is a multiple of `count`.

    Args:
        differs: a bool tensor, True where elements differ.
        count: number of lanes (samples or positions).
        allowed: the lanes that may differ.

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
        for block in reversed(_divisors(size // count)):  # usually a lane is one large block
            lanes = _any_on_bytes(along.reshape(-1, count, block), [0, 2]).tolist()
            if all(lane in allowed for lane, is_other in enumerate(lanes) if is_other):
                return True
    return found


def _any_on_bytes(truths: Tensor, dims: list[int]) -> Tensor:
    """Return `truths.any(dims)`, computed on bytes, because the kernel for bytes is much faster."""
    return truths.view(torch.uint8).amax(dims).view(torch.bool) if dims else truths


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, 512) + 1) if number % n == 0] + (
        [number] if number > 512 else []
    )


def crosses(differs: Tensor, count: int, allowed: Collection[int]) -> bool:
    """Return whether a matrix differs only in the rows or columns of allowed lanes.

    Args:
        differs: a bool tensor, True where elements differ. Its last two dimensions are the matrix,
            which has a row and a column for each lane (sample or position).
        count: number of lanes (samples or positions).
        allowed: the lanes that may differ.
    """
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
    """Callback for `run_side_by_side` that compares each operator's results in both runs.

    Args:
        count: number of lanes (samples or positions). With 0, only values are compared.
        allowed: the lanes that may differ.
        in_pairs: True if a matrix of all pairs of lanes, such as attention scores, may differ in
            the rows or columns of these lanes.
        views: True to add the fractions for views to `shares`.
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
        self.rows: dict[int, OperatorComparison] = {}
        # Index of a node in the run -> fraction of elements that differ.
        self.shares: dict[int, float] = {}
        self.same = 0  # number of operators whose results are equal
        self.last_same: OperatorComparison | None = None

    def __call__(self, compared: OperatorPair) -> bool:
        """Compare the two results of an operator, and return True if they differ."""
        if compared.is_view and not self._views:
            return True  # a view differs if its base does
        differs = difference(compared.first, compared.other)
        share = 1.0 if differs is None else _share(differs)
        if compared.node >= 0:
            self.shares[compared.node] = max(share, self.shares.get(compared.node, 0.0))
        if compared.is_view:
            return share > 0
        known = self.rows.get(compared.number)
        # The second result of an RNN is its last state, which has no dimension for positions.
        if known is not None and "rnn" in compared.name:
            return share > 0
        kept = crossed = None
        if share and self.count and differs is not None:
            kept = keeps(differs, self.count, self.allowed)
            crossed = kept is False and crosses(differs, self.count, self.allowed)
            kept = True if crossed and self.in_pairs else kept
        # Measure the change only of the first operators or, if there are lanes, of the first
        # operators that mix lanes.
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
        """Return whether tensors differ only in lanes (samples, positions) that may differ."""
        differs = difference(first, other)
        return differs is not None and keeps(differs, self.count, self.allowed) is True

    def origin(self, maker: int) -> tuple[OperatorComparison, list[OperatorComparison]] | None:
        """Find the operators upstream of `maker` that mix lanes (samples or positions).

        Returns (the first of these operators, all of them), or None if there are none.

        Args:
            maker: number of the operator where the search starts.
        """
        path: dict[int, OperatorComparison] = {}
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
) -> OperatorComparison:
    """Return the `OperatorComparison` of an operator.

    Args:
        compared: the operator, with its results in both runs.
        kept, share, change, crossed: `keeps`, `share`, `change` and `crosses` of the result.
        count: number of lanes (samples or positions).
        placed: whether to find the source line that called the operator.
    """
    place, user_place, functions = compared.lines() if placed else (None, None, ())
    return OperatorComparison(
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
    """Return an operator's name without prefixes: "softmax" for "aten::_softmax"."""
    return name.rpartition("::")[2].lstrip("_").removeprefix("native_")


def _worse(a: OperatorComparison, b: OperatorComparison) -> OperatorComparison:
    if a.keeps is False or (a.keeps is True and b.keeps is None):
        return a
    return b._replace(share=max(a.share, b.share), node=max(a.node, b.node))


def _share(differs: Tensor) -> float:
    return float(torch.count_nonzero(differs)) / differs.numel() if differs.numel() else 0.0


def _is_even(tensor: Tensor, operator: str) -> bool:
    """Return whether all elements are zero or, if the operator selects elements, are equal."""
    plain = readable(tensor)
    if plain is None or not plain.numel():
        return False
    if any(word in operator for word in _TAKES) and plain.numel() > 1:
        return bool((plain == plain.flatten()[0]).all())
    return not bool(plain.any())


def _is_square(tensor: Tensor, count: int) -> bool:
    return tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1] == count > 0
