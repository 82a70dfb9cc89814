"""Compare two forwards that should be equal, and find the first operation whose result differs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..graph import Experiment, Finding
from ..graph.text import users_line
from ..internals.replay.forward import CallResult, ForwardResult
from ..internals.tensors.pytree import flatten
from .precision import distance
from .subject import Subject, reason


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
