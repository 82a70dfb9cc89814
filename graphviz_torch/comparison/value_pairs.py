"""Match results of two graphs by value, even if names and structure differ.

A node is matched by structure first, as in `diff`. If its match has a different result, the node is
matched with a node of the other graph whose result has the same elements, in any order. This
matches a model with the same model written in other code. Each node has one of these states:

- equal: the result of the match has the same value.
- moved: the result of the match has the same elements in different positions.
- other: no result of the other graph has the same value.
- unknown: the result has no fingerprint, or may have the fingerprint of another result by chance.

The difference of two results is estimated from their fingerprints.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from ..graph import Edge, Fingerprint, Graph, Node
from ..graph.immutable import mutable

ALONG, NEAR, FIRST, WHOLE = slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6)

# dtype -> relative difference of two results that differ only in the order of sums.
ROUNDING = {"float64": 1e-9, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}


def rounding_of(graph: Graph, inputs: Sequence[Sequence[Edge]]) -> list[float]:
    """Return, for each node, the largest rounding error of the dtypes at and upstream of it."""
    found: list[float] = []
    for node in graph.nodes:
        dtypes = [meta.dtype for meta in node.outputs if meta is not None]
        own = [ROUNDING.get(dtype, ROUNDING["float32"]) for dtype in dtypes]
        found.append(max(own + [found[edge.source] for edge in inputs[node.id]], default=1e-5))
    return found


def is_identifying(value: Fingerprint | None) -> bool:
    """Return True if a fingerprint belongs to a finite result with elements."""
    return (
        value is not None
        and math.isfinite(value.norm + value.mean + value.least + value.greatest)
        and value.elements > 0
    )


def distance(a: Fingerprint, b: Fingerprint, *, places: bool) -> float:
    """Return a lower bound on the relative difference of two results.

    The distance is inf if the results have different numbers of elements.

    Args:
        a, b: fingerprints of the results.
        places: True to compare elements position by position, False to ignore the order of
            elements.

    >>> one = Fingerprint(2, 5.0, 3.5, 3.0, 4.0, (0, 0, 0, 0, 0, 0, 7.0, 3.64))
    >>> round(distance(one, one._replace(norm=5.05), places=True), 4)
    0.0099
    """
    if a.elements != b.elements:
        return math.inf
    size, peak = max(a.norm, b.norm), max(map(abs, (a.least, a.greatest, b.least, b.greatest)))
    if size == 0 or peak == 0:
        return 0.0
    *here, sizes_a, cubes_a = a.projections
    *there, sizes_b, cubes_b = b.projections
    found = [
        abs(a.norm - b.norm) / size,
        abs(a.mean - b.mean) * math.sqrt(a.elements) / size,
        abs(a.least - b.least) / peak,
        abs(a.greatest - b.greatest) / peak,
        abs(sizes_a - sizes_b) / max(sizes_a, sizes_b, size),
        abs(cubes_a - cubes_b) / peak,
    ]
    if places:
        found += _differences(here, there, size)
    return max([each for each in found if math.isfinite(each)], default=0.0)


def equal_projections(a: Fingerprint, b: Fingerprint, part: slice, tolerance: float) -> bool:
    """Return True if a slice of the projections of two fingerprints is equal up to a tolerance."""
    size = max(a.norm, b.norm)
    differing = _differences(a.projections[part], b.projections[part], size)
    return max(differing, default=0.0) <= tolerance


def _differences(a: Sequence[float], b: Sequence[float], size: float) -> list[float]:
    return [abs(x - y) / size for x, y in zip(a, b, strict=True)]


State = Literal["equal", "moved", "other", "unknown"]

TRANSPOSES = ("t", "transpose", "permute", "numpy_t")
_MIN_ELEMENTS = 16  # results with fewer elements may be equal by chance
_EXACT_TOLERANCE = 1e-4  # maximum relative difference of results that are matched by value alone
# Elements have moved if the relative difference, position by position, exceeds the first number,
# and exceeds the tolerance by the second, a factor.
MOVED_DISTANCE = 1e-2
_MOVED_FACTOR = 100
_MAX_SUMMARY_ELEMENTS = 64  # smaller results may summarize a batch, such as a loss


@mutable(slots=False)
class ValuePairs:
    """The nodes of one graph, matched by value with the nodes of another graph.

    Args:
        own_graph, other_graph: the two graphs.
        pairs: id in `own_graph` -> id in `other_graph`, for nodes matched by structure.
        tolerance: maximum relative difference of equal results; None uses the rounding error of
            the dtype.
    """

    own_graph: Graph
    other_graph: Graph
    pairs: Mapping[int, int]
    tolerance: float | None
    states: list[State] = field(default_factory=list)
    # Node id -> id of the match, for nodes in the state equal or moved.
    partners: dict[int, int] = field(default_factory=dict)
    # Node id -> relative difference between the results of the node and of its match. This is the
    # match by value or, if there is none, by structure.
    distances: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inputs: list[list[Edge]] = self.own_graph.inputs()
        self._rounding = rounding_of(self.own_graph, self.inputs)
        self._other_rounding = rounding_of(self.other_graph, self.other_graph.inputs())
        index = _Index(self.other_graph)
        self.states = [self._state(node, index) for node in self.own_graph.nodes]

    def _state(self, node: Node, index: _Index) -> State:
        value = value_of(node)
        other = self.pairs.get(node.id)
        if value is None or not is_identifying(value):
            if value is None or not value.elements:
                return "unknown"
            # -Inf in only one of the graphs is not a difference, because masks contain -Inf on
            # purpose.
            if other is None:
                return "other" if value.greatest == math.inf and index.finite else "unknown"
            if not is_identifying(value_of(self.other_graph.nodes[other])):
                return "unknown"
            self.distances[node.id] = math.inf
            return "other"
        if other is not None:
            pair = self.other_graph.nodes[other]
            theirs = value_of(pair)
            if theirs is not None and is_identifying(theirs):
                tolerance = self.tolerance_for(node.id, other)
                same_shape = shape_of(node) == shape_of(pair)
                found = distance(value, theirs, places=same_shape)
                self.distances[node.id] = found
                if found <= tolerance:
                    self.partners[node.id] = other
                    return "equal"
                unordered = distance(value, theirs, places=False)
                if unordered <= min(tolerance, _EXACT_TOLERANCE):
                    # The difference by position is too small for elements that have moved. A few
                    # elements have other values, which the sums over all elements hardly show.
                    if found <= max(_MOVED_FACTOR * tolerance, MOVED_DISTANCE):
                        return "other"
                    self.partners[node.id] = other
                    self.distances[node.id] = unordered
                    return "moved"
        others = list(
            index.with_same_elements(value, min(self.tolerance_for(node.id), _EXACT_TOLERANCE))
        )
        if others:
            return self._match_same_elements(node, value, others)
        alone = value.elements >= _MIN_ELEMENTS and self.tolerance_for(node.id) <= _EXACT_TOLERANCE
        return "other" if alone or node.id in self.distances else "unknown"

    def _match_same_elements(self, node: Node, value: Fingerprint, others: list[int]) -> State:
        """Match a node with one of `others`, preferably one with elements in the same positions.

        Args:
            node: the node.
            value: fingerprint of the node's result.
            others: nodes of the other graph whose results have the same elements.
        """
        nodes, shape = self.other_graph.nodes, shape_of(node)
        same = [other for other in others if shape_of(nodes[other]) == shape]
        limit = _MOVED_FACTOR * self.tolerance_for(node.id)
        here = [i for i in same if distance(value, _known_value(nodes[i]), places=True) <= limit]
        partner = (here or same or others)[0]
        self.partners[node.id] = partner
        self.distances[node.id] = distance(value, _known_value(nodes[partner]), places=bool(here))
        # In the result of a transpose, elements in other positions are not a difference.
        turns = self.own_graph.nodes[node.id].operation in TRANSPOSES
        return "moved" if same and not here and not turns else "equal"

    def tolerance_for(self, node: int, other: int | None = None) -> float:
        """Return the tolerance for comparing a node with `other`; None means any node."""
        if self.tolerance is not None:
            return self.tolerance
        return max(self._rounding[node], 0 if other is None else self._other_rounding[other])

    def differing_nodes(self) -> list[int]:
        """Return the nodes whose differing results lead to a differing output, in id order.

        All results on at least one path from such a node to an output differ. Other nodes with a
        differing result are only steps of a different way to compute the same.
        """
        found: set[int] = set()
        stack = [node for node, _ in self.own_graph.outputs]
        summing = set(stack)
        while stack:
            node = stack.pop()
            state = self.states[node]
            if node in found or (state in ("equal", "moved") and node not in summing):
                continue
            if self.own_graph.nodes[node].leaf:
                continue
            found.add(node)
            value = value_of(self.own_graph.nodes[node])
            for edge in self.inputs[node]:
                if node in summing and (value is None or value.elements < _MAX_SUMMARY_ELEMENTS):
                    summing.add(edge.source)
                stack.append(edge.source)
        return sorted(node for node in found if self.states[node] == "other")

    def error_before(self, node: int) -> float:
        """Return the largest relative difference of a node's inputs; 0.0 if none is known."""
        return max(
            (self.distances[i] for i in self.known_inputs(node) if i in self.distances), default=0.0
        )

    def readers(self, node: int) -> list[int]:
        """Return the nodes that use the result of a node, once per edge."""
        return [edge.target for edge in self.own_graph.edges if edge.source == node]

    def known_inputs(self, node: int) -> list[int]:
        """Return the nearest upstream nodes that are leaves or have a state other than unknown."""
        found: dict[int, None] = {}
        stack = [edge.source for edge in reversed(self.inputs[node])]
        entered: set[int] = set()
        while stack:
            source = stack.pop()
            if source in entered:
                continue
            entered.add(source)
            if self.states[source] != "unknown" or self.own_graph.nodes[source].leaf:
                found[source] = None
            else:
                stack += [edge.source for edge in reversed(self.inputs[source])]
        return list(found)


class _Index:
    """An index of a graph's results by number of elements and norm."""

    def __init__(self, graph: Graph) -> None:
        rows: dict[int, list[tuple[float, int]]] = {}
        self._nodes = graph.nodes
        self.finite = True  # False if a result contains +Inf (-Inf may be a mask)
        for node in graph.nodes:
            value = value_of(node)
            if value is not None and value.greatest == math.inf:
                self.finite = False
            if value is not None and is_identifying(value) and value.elements >= _MIN_ELEMENTS:
                rows.setdefault(value.elements, []).append((value.norm, node.id))
        self._rows = {count: sorted(row) for count, row in rows.items()}

    def with_same_elements(self, value: Fingerprint, tolerance: float) -> Iterator[int]:
        """Yield the nodes whose results have the same elements, in any order."""
        row = self._rows.get(value.elements, [])
        # Constant results are not matched by value, because many results are all zeros or all ones.
        if value.least == value.greatest:
            return
        end = value.norm * (1 + tolerance)
        for norm, node in row[bisect_left(row, (value.norm * (1 - tolerance), -1)) :]:
            if norm > end:
                return
            if distance(value, _known_value(self._nodes[node]), places=False) <= tolerance:
                yield node


def value_of(node: Node) -> Fingerprint | None:
    """Return the first fingerprint of a node's results; None if no result has a fingerprint."""
    return next((value for value in node.fingerprints if value is not None), None)


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's first output with metadata; () if no output has metadata."""
    return next((meta.shape for meta in node.outputs if meta is not None), ())


def _known_value(node: Node) -> Fingerprint:
    value = value_of(node)
    assert value is not None
    return value
