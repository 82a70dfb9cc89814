"""Directions in which a step moves results: the signs of gradients, and of the terms of a loss."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..graph import Node
from ..graph.operations import SAME_VALUES
from .axes import attribute
from .graph_reading import Reading

Result = tuple[int, int]  # id of a node, and the index of its output
NUMBER = (-1, 0)  # represents a Python number

_MIN_RATIO = 0.7  # smallest ratio of |sum| to its largest possible value for gradients of one sign
_ADDING = ("add", "sub", "rsub")
_AVERAGING = {"mean", "sum", "select"} | SAME_VALUES


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
    return [*_terms(reading, result, _AVERAGING if reduces else SAME_VALUES)]


def _terms(
    reading: Reading, start: Result, passed: set[str] | frozenset[str]
) -> Iterator[tuple[float, Result]]:
    stack = [(1.0, start)]
    while stack:
        factor, result = stack.pop()
        node, edges = reading.graph.nodes[result[0]], reading.inputs[result[0]]
        given, other = [(edge.source, edge.output_nr) for edge in edges], constant(node)
        if node.operation in passed and len(edges) == 1:
            stack.append((factor, given[0]))
        elif node.operation == "neg" and edges:
            stack.append((-factor, given[0]))
        elif (by := number_by(node)) and edges:
            stack.append((factor * by, given[0]))
        elif node.operation in _ADDING and (len(edges) == 2 or (edges and other is not None)):
            alpha = constant(node, "alpha")
            second = (1.0 if alpha is None else alpha) * (1 if node.operation == "add" else -1)
            signs = (1.0, second) if node.operation != "rsub" else (second, 1.0)
            for edge, each in zip(edges, given, strict=True):
                stack.append((factor * signs[min(edge.input_nr, 1)], each))
            if other is not None:
                yield factor * signs[1] * other, NUMBER
        else:
            yield factor, result
