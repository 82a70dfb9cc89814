"""Find the operation that loses more than half of its digits: compare with float64."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..graph import Experiment
from ..internals.replay.shadows import DOUBLE
from ..internals.replay.side_by_side import OperatorPair
from ..internals.tensors.pytree import flatten
from .subject import Subject
from .two_runs import Comparison, OperatorComparison, readable, row_of

_ADVICE = (
    "It subtracts nearly equal numbers, or exceeds the range of its dtype: compute it in float32, "
    "or by a stable function (log_softmax, logsumexp, expm1, var)."
)

_BLOCK_SIZE = 1 << 16  # number of elements


class _PrecisionComparison(Comparison):
    """A callback that compares each operator's result with the result computed in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[int, float] = {}
        self.dtypes: dict[int, torch.dtype] = {}
        self.allowed_errors: dict[int, float] = {}

    def __call__(self, compared: OperatorPair) -> bool:
        if compared.is_view:
            return True
        error = distance(compared.first, compared.other)
        known = self.errors.get(compared.number, 0.0)
        self.errors[compared.number] = max(error, known)
        self.dtypes[compared.number] = compared.first.dtype
        # A bfloat16 value cast to float32 still has the precision of bfloat16.
        given = [self.allowed_errors.get(maker, 0.0) for maker in compared.makers]
        allowed = max(_half_digits_error(compared.first.dtype), *given, 0.0)
        self.allowed_errors[compared.number] = allowed
        row = row_of(compared, None, 1.0, error, placed=error > allowed)
        if compared.number not in self.rows or error > allowed:
            self.rows[compared.number] = row
        return True


def float64(subject: Subject) -> Iterator[Experiment]:
    """Run the forward in float64 as well. No operation may lose more than half of its digits."""
    changed = "all operations were also computed in float64"
    digits = _PrecisionComparison()
    run = subject.run(digits, double=True)
    if (unknown := subject.inconclusive("float64", changed, run)) is not None:
        yield unknown
        return
    outputs = [
        (t, run.shadows.get(t))
        for _, t in flatten(run.output, ask=False)
        if t.dtype in DOUBLE and not t.is_meta
    ]
    worst = 0.0
    for tensor, other in outputs:
        if other is None:
            continue
        error = distance(tensor, other)
        worst = max(worst, error)
        maker = run.shadows.maker(tensor)
        if error <= digits.allowed_errors.get(maker, _half_digits_error(tensor.dtype)) or _is_zero(
            tensor, other
        ):
            continue
        row = _first_imprecise(digits, maker)
        if row is None:
            continue
        name = str(digits.dtypes[row.number]).removeprefix("torch.")
        message = (
            f"the output differs by {error:.1g} of its size; {{operation}} is the first to lose "
            f"more than half of the digits of {name} ({row.change:.1g})"
        )
        yield subject.answer(
            "float64", changed, message, row, run, rule="precision-loss", advice=_ADVICE
        )
        return
    if not digits.rows:
        yield Experiment("float64", changed, None, "it computes in float64, or with integers")
        return
    if not any(
        other is not None and readable(tensor) is not None and readable(other) is not None
        for tensor, other in outputs
    ):
        message = "no part of the output can be computed in float64"
        yield Experiment("float64", changed, None, message)
        return
    message = f"the output differs by {worst:.1g} of its size"
    yield Experiment("float64", changed, True, message)


def distance(first: Tensor, other: Tensor) -> float:
    """Return the norm of the difference, divided by the norm of `other`; at most 1.

    Elements that are NaN or infinite in both tensors are ignored. The result is 1 if an element is
    finite in only one of the tensors.
    """
    a, b = readable(first), readable(other)
    if a is None or b is None or a.shape != b.shape or not a.numel():
        return 0.0
    size, apart = _norms(a, b)
    if isfinite(size) and isfinite(apart):
        return min(apart / size, 1.0) if size else float(apart > 0)
    finite = a.isfinite()
    if not bool((finite == b.isfinite()).all()):
        return 1.0
    size, apart = _norms(a[finite], b[finite])
    return 0.0 if not apart else min(apart / size, 1.0) if size else 1.0


def _norms(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return the norms of `b` and of `b - a`, computed in float64.

    Large CPU tensors are read in blocks that fit into the CPU's cache.
    """
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    norm = torch.linalg.vector_norm
    in_order = a.is_contiguous() and b.is_contiguous()
    if a.numel() <= _BLOCK_SIZE or a.device.type != "cpu" or not in_order or a.dtype is torch.bool:
        a, b = a.to(wide), b.to(wide)
        return float(norm(b)), float(norm(b - a))
    flat: list[Any] = [a.view(-1), b.view(-1)]
    room = a.new_empty(_BLOCK_SIZE, dtype=wide)
    sizes, distances = [], []
    for x, y in zip(*(each.split(_BLOCK_SIZE) for each in flat), strict=True):
        block = room[: len(y)]
        sizes.append(norm(block.copy_(y)))
        distances.append(norm(block.sub_(x)))
    return float(norm(torch.stack(sizes))), float(norm(torch.stack(distances)))


def _is_zero(first: Tensor, other: Tensor) -> bool:
    """Return whether all values of `other` would underflow to 0 in the dtype of `first`."""
    values = readable(other)
    least = torch.finfo(first.dtype).tiny
    return values is not None and bool((values.abs() < least).all())


def _half_digits_error(dtype: torch.dtype) -> float:
    """Return the relative error of a result that has lost half of the dtype's digits."""
    return float(torch.finfo(dtype).eps ** 0.5)


def _first_imprecise(digits: _PrecisionComparison, maker: int) -> OperatorComparison | None:
    """Return the first operator upstream of `maker` that lost too many digits; None if none did.

    Args:
        digits: the compared operators.
        maker: number of the operator where the search starts.
    """
    seen: set[int] = set()
    stack, found = [maker], None
    while stack:
        number = stack.pop()
        if number in seen or number not in digits.rows:
            continue
        if digits.errors[number] <= digits.allowed_errors[number]:
            continue
        seen.add(number)
        found = number if found is None else min(found, number)
        stack.extend(digits.rows[number].makers)
    return None if found is None else digits.rows[found]
