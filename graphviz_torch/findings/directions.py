"""Directions in which a step moves results: the signs of gradients, and of the terms of a loss."""

from __future__ import annotations

import math

from ..graph import Node
from ..graph.nodes import SAME_VALUES, SUMS
from .axes import attribute
from .graph_reading import Reading

Result = tuple[int, int]  # id of a node, and the index of its output
NUMBER = (-1, 0)  # represents a Python number

_MIN_RATIO = 0.7  # smallest ratio of |sum| to its largest possible value for gradients of one sign
_AVERAGING = {"mean", "sum", "select"} | SAME_VALUES
_LINEAR = {*SUMS, *_AVERAGING, "neg", "stack", "cat", "slice", "index"}


def direction(reading: Reading, node: int) -> int:
    """Return the sign of the gradient of a node's result; 0 if it is unknown or elements differ.

    A step with a positive sign makes the result smaller.
    """
    stats = reading.stats(node)
    if stats is None or stats.tensor is None or stats.nonfinite or not stats.norm:
        return 0
    count = math.prod(stats.tensor.shape)
    nonzero = count * (1 - stats.zero_fraction)
    if abs(stats.mean) * count < _MIN_RATIO * stats.norm * math.sqrt(nonzero):
        return 0
    return 1 if stats.mean > 0 else -1


def is_linear_in_loss(reading: Reading, node: int) -> bool:
    """Return True if a result is a term of the loss, possibly multiplied by data or numbers."""
    waiting = [node]
    for number in waiting:
        for edge in reading.users[number]:
            user = reading.graph.nodes[edge.target]
            scales = user.operation == "mul" or (user.operation == "div" and not edge.input_nr)
            scales &= len(reading.inputs[user.id]) == 1
            if not scales and user.operation not in _LINEAR:
                return False
            if user.id not in waiting:
                waiting.append(user.id)
    return True


def constant(node: Node, name: str = "other") -> float | None:
    """Return a number that a node's operation took; None if it took a tensor or no number."""
    try:
        return float(attribute(node, name))
    except ValueError:
        return None


def number_by(node: Node) -> float | None:
    """Return the Python number that a node multiplies its input by; None for any other node."""
    by = constant(node)
    if by is None or node.operation not in ("mul", "div"):
        return None
    return by if node.operation == "mul" else 1 / by if by else math.inf


def linear_terms(
    reading: Reading, result: Result, *, reduces: bool = True
) -> list[tuple[float, Result]]:
    """Return the terms of a sum as pairs of a factor and a result.

    Sums, differences, and products with Python numbers are divided into their operands. The
    result of a number that is added is `NUMBER`.

    Args:
        reading: the graph.
        result: the sum.
        reduces: True to pass means and sums over elements. The factors then have the right sign
            only.
    """
    passed = _AVERAGING if reduces else SAME_VALUES
    waiting, found = {result: 1.0}, dict[Result, float]()
    while waiting:
        # Users are divided before their sources, so that each result is divided only once.
        result = max(waiting)
        factor = waiting.pop(result)
        terms = _operands(reading, result, passed)
        for by, term in terms or [(1.0, result)]:
            to = waiting if terms and term != NUMBER else found
            to[term] = to.get(term, 0.0) + factor * by
    return [(factor, term) for term, factor in found.items()]


def _operands(
    reading: Reading, result: Result, passed: set[str] | frozenset[str]
) -> list[tuple[float, Result]]:
    """Return the terms of one operation, with their factors; [] if the result is not a sum."""
    node, edges = reading.graph.nodes[result[0]], reading.inputs[result[0]]
    given, other = [(edge.source, edge.output_nr) for edge in edges], constant(node)
    if node.operation in passed and len(edges) == 1:
        return [(1.0, given[0])]
    if node.operation == "neg" and edges:
        return [(-1.0, given[0])]
    if (by := number_by(node)) and edges:
        return [(by, given[0])]
    if node.operation not in SUMS or not (len(edges) == 2 or (edges and other is not None)):
        return []
    alpha = constant(node, "alpha")
    second = (1.0 if alpha is None else alpha) * (1 if node.operation == "add" else -1)
    signs = (1.0, second) if node.operation != "rsub" else (second, 1.0)
    pairs = zip(edges, given, strict=True)
    terms = [(signs[min(edge.input_nr, 1)], each) for edge, each in pairs]
    return terms if other is None else [*terms, (signs[1] * other, NUMBER)]
