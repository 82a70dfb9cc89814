"""Find the first operation whose results differ between two forwards that should be equal."""

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
    """The first operation whose result differs."""

    operation: str  # "layer_norm"
    where: str  # the operation's line
    module: str
    change: float  # relative to the norm of its result
    is_random: bool = False  # True if random numbers had been drawn before


class RecordedResults:
    """Copies of the results of calls into torch, up to a number of bytes."""

    def __init__(self, budget: int = 1 << 28) -> None:
        self.made: list[CallResult] = []
        self._budget = budget

    def __call__(self, made: CallResult) -> None:
        """Keep a result, without its values if the budget is spent."""
        self._budget -= sum(t.nbytes for t in made.tensors)
        kept = tuple(t.detach().clone() for t in made.tensors) if self._budget >= 0 else ()
        self.made.append(made._replace(tensors=kept))


class DivergenceFinder:
    """Compares the results of calls into torch with those of the first run.

    Args:
        results: of the first run.
    """

    def __init__(self, results: RecordedResults) -> None:
        self.part: tuple[CallResult, float] | None = None
        self.is_random = False  # True if random numbers were drawn before the difference
        self._rest = iter(results.made)
        self._is_open = True

    def __call__(self, made: CallResult) -> None:
        """Compare a result, unless the control flow has changed."""
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
        subject: the recording.
        name: of the experiment.
        changed: description of the change.
        first, other: the two runs.
        rule: id of the finding if they differ.
        advice: of the finding.
        part: the first operation that differs, if known; otherwise the first module is searched
            for.
    """
    for run in (first, other):
        if run.error is not None:
            return Experiment(name, changed, None, reason(run.error, "so"))
    size = largest_distance(first, other)
    if size is None:
        return Experiment(name, changed, None, "the path through the code depends on the values")
    if not outputs_differ(first, other):
        return Experiment(name, changed, True, f"the output differs by {size:.1g} of its size")
    if part is not None and part.is_random:
        message = "it draws random numbers in the order of memory, so nothing is concluded"
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
    """Return True if the outputs differ by more than rounding."""
    return max((scaled_distance(a, b) for a, b in _outputs(first, other)), default=0.0) > 1


def largest_distance(first: ForwardResult, other: ForwardResult) -> float | None:
    """Return the largest distance between outputs, or None if their shapes differ."""
    pairs = _outputs(first, other)
    if any(a.shape != b.shape for a, b in pairs):
        return None
    return max((distance(a, b) for a, b in pairs), default=0.0)


def scaled_distance(a: Tensor, b: Tensor) -> float:
    """Return the distance in units of the square root of the dtype's epsilon."""
    if not (a.is_floating_point() or a.is_complex()):
        return 0.0 if a.shape == b.shape and bool((a == b).all()) else 2.0
    return distance(a, b) / float(torch.finfo(a.dtype).eps ** 0.5)


def _outputs(first: ForwardResult, other: ForwardResult) -> list[tuple[Tensor, Tensor]]:
    a, b = ([t for _, t in flatten(run.output, ask=False)] for run in (first, other))
    return list(zip(a, b, strict=False))


def _module(first: ForwardResult, other: ForwardResult) -> tuple[str, float] | None:
    """Return the first module whose results differ and their distance, or None."""
    if [path for path, _, _ in first.modules] != [path for path, _, _ in other.modules]:
        return None
    for (path, a, before), (_, b, _) in zip(first.modules, other.modules, strict=True):
        if a._version == before and scaled_distance(a, b) > 1:
            return path, distance(a, b)
    return None


def _node(subject: Subject, part: Divergence) -> int | None:
    """Return the node on the line of the difference, if exactly one has its name."""
    here = [n for n in subject.graph.nodes if part.operation and n.where == part.where]
    alike = [n for n in here if part.operation.strip("_") in n.title or n.title in part.operation]
    return alike[0].id if len(alike) == 1 else None
