"""Compare two forwards, and find the first operation that differs or loses half of its digits."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..graph import Experiment, Finding
from ..graph.immutable import NamedTuple
from ..graph.text import users_line
from ..internals.replay.forward import CallResult, ForwardResult
from ..internals.replay.shadows import DOUBLE
from ..internals.replay.side_by_side import OperatorPair
from ..internals.tensors.pytree import flatten
from .subject import Subject, reason
from .two_runs import Comparison, OperatorComparison, readable, row_of


class Divergence(NamedTuple):
    """The first operation whose result differs between two forwards."""

    operation: str  # "layer_norm"
    where: str  # the operation's line
    module: str
    change: float  # norm of the difference, relative to the result's norm
    is_random: bool = False  # whether random numbers were generated before this operation


class RecordedResults:
    """A callback that stores copies of torch calls' results, up to `budget` bytes in total."""

    def __init__(self, budget: int = 1 << 28) -> None:
        self.made: list[CallResult] = []
        self._budget = budget

    def __call__(self, made: CallResult) -> None:
        """Store a result. If the budget is exceeded, store only its name and metadata."""
        self._budget -= sum(t.nbytes for t in made.tensors)
        kept = tuple(t.detach().clone() for t in made.tensors) if self._budget >= 0 else ()
        self.made.append(made._replace(tensors=kept))


class DivergenceFinder:
    """A callback that compares the results of torch calls with those of the first run.

    Args:
        results: the results of the first run.
    """

    def __init__(self, results: RecordedResults) -> None:
        self.part: tuple[CallResult, float] | None = None
        self.is_random = False  # whether random numbers were generated before the difference
        self._rest = iter(results.made)
        self._is_open = True

    def __call__(self, made: CallResult) -> None:
        """Compare a result, unless an earlier result differed or the control flow changed."""
        if not self._is_open:
            return
        first = next(self._rest, None)
        if first is None or first.name != made.name:
            self._is_open = False
            return
        self.is_random |= first.is_random or made.is_random
        for a, b in zip(first.tensors, made.tensors, strict=False):
            if a.shape == b.shape and scaled_distance(a, b) > 1:
                self.part, self._is_open = (made, distance(a, b)), False
                return


def compare_forwards(
    subject: Subject,
    name: str,
    changed: str,
    first: ForwardResult,
    other: ForwardResult,
    rule: str,
    advice: str,
    part: Divergence | None = None,
) -> Experiment:
    """Return the experiment's result for two forwards that should be equal.

    Args:
        subject: the recorded call.
        name: name of the experiment.
        changed: description of the change.
        first, other: the two forwards.
        rule: rule of the finding if the forwards differ.
        advice: advice of the finding.
        part: the first operation whose result differs. If None, the result names the first module
            whose results differ.
    """
    for run in (first, other):
        if run.error is not None:
            return Experiment(name, changed, None, reason(run.error, "with this change"))
    size = largest_distance(first, other)
    if size is None:
        return Experiment(name, changed, None, "control flow depends on the values")
    if not outputs_differ(first, other):
        return Experiment(name, changed, True, f"the output differs by {size:.1g} of its size")
    if part is not None and part.is_random:
        message = "random numbers are drawn in memory order, so nothing can be concluded"
        return Experiment(name, changed, None, message, part.operation, part.where, part.module)
    if part is None:
        module, change = _module(first, other) or ("", size)
        at = f"the result of {module} differs first" if module else "the output differs"
        part = Divergence("", subject.recorded.where, module, change)
    else:
        at = f"the output differs, first at {part.operation}"
    message = f"{at}, by {part.change:.1g} of its size"
    node = _node(subject, part)
    nodes = () if node is None else (node,)
    found = Finding(
        rule,
        "warning",
        f"{changed[0].upper()}{changed[1:]}: {message}.",
        advice,
        where=users_line(part.where),
        nodes=nodes,
    )
    return Experiment(
        name,
        changed,
        False,
        message,
        part.operation,
        part.where,
        part.module,
        node,
        part.change,
        found,
    )


def outputs_differ(first: ForwardResult, other: ForwardResult) -> bool:
    """Return whether the outputs differ by more than rounding errors."""
    return max((scaled_distance(a, b) for a, b in _outputs(first, other)), default=0.0) > 1


def largest_distance(first: ForwardResult, other: ForwardResult) -> float | None:
    """Return the largest relative distance of two outputs; None if their shapes differ."""
    pairs = _outputs(first, other)
    if any(a.shape != b.shape for a, b in pairs):
        return None
    return max((distance(a, b) for a, b in pairs), default=0.0)


def scaled_distance(a: Tensor, b: Tensor) -> float:
    """Return the relative distance, divided by the square root of the dtype's epsilon.

    A result above 1 means that more than half of the digits differ. For integers, the result is 0
    (equal) or 2 (different).
    """
    if not (a.is_floating_point() or a.is_complex()):
        return 0.0 if a.shape == b.shape and bool((a == b).all()) else 2.0
    return distance(a, b) / float(torch.finfo(a.dtype).eps ** 0.5)


def _outputs(first: ForwardResult, other: ForwardResult) -> list[tuple[Tensor, Tensor]]:
    a, b = ([t for _, t in flatten(run.output, ask=False)] for run in (first, other))
    return list(zip(a, b, strict=False))


def _module(first: ForwardResult, other: ForwardResult) -> tuple[str, float] | None:
    """Return (first module whose results differ, their distance); None if no results differ.

    Results that the program later changed in place are not compared.
    """
    if [path for path, _, _ in first.modules] != [path for path, _, _ in other.modules]:
        return None
    for (path, a, before), (_, b, _) in zip(first.modules, other.modules, strict=True):
        if a._version == before and scaled_distance(a, b) > 1:
            return path, distance(a, b)
    return None


def _node(subject: Subject, part: Divergence) -> int | None:
    """Return the node with the name and line of an operation; None if not exactly one matches."""
    here = [n for n in subject.graph.nodes if part.operation and n.where == part.where]
    alike = [n for n in here if part.operation.strip("_") in n.title or n.title in part.operation]
    return alike[0].id if len(alike) == 1 else None


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
