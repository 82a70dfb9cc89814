"""Which results of two graphs are the same, though nodes have other names and other neighbours.

A node is paired by structure first, as `diff` does. Where that gives no result that is equal, any
result of the other graph will do that has the same elements, in whatever order: so a port is paired
with its original.

    equal    its pair, or some other result, has its value
    moved    its pair has its elements, in other places
    other    no result of the other graph has its value
    unknown  it has no value that can be told from others
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..graph import Edge, Fingerprint, Graph, Node
from .closeness import distance, is_telling, rounding_of

State = Literal["equal", "moved", "other", "unknown"]

TRANSPOSES = ("t", "transpose", "permute", "numpy_t")
_FEW = 16  # elements: of fewer, one is easily like another
_EXACT = 1e-4  # what is paired by its value alone is paired up to this
MOVED = 1e-2  # from this on elements stand in other places
_FAR = 100  # times as far apart as rounding makes them: then elements are in other places
_SMALL = 64  # elements of what sums up a batch: a loss, an accuracy


@dataclass
class ValuePairs:
    """One graph's nodes beside the other's.

    Args:
        here, there: the two.
        pairs: ids here and there of what structure pairs.
        tolerance: relative; None for what rounding makes of the dtype.
    """

    here: Graph
    there: Graph
    pairs: Mapping[int, int]
    tolerance: float | None
    states: list[State] = field(default_factory=list)
    partners: dict[int, int] = field(default_factory=dict)  # of what is equal, or moved
    distances: dict[int, float] = field(default_factory=dict)  # from those, or the structural pair

    def __post_init__(self) -> None:
        self.inputs: list[list[Edge]] = self.here.inputs()
        self._rounding = rounding_of(self.here, self.inputs)
        self._theirs = rounding_of(self.there, self.there.inputs())
        index = _Index(self.there)
        self.states = [self._state(node, index) for node in self.here.nodes]

    def _state(self, node: Node, index: _Index) -> State:
        value = value_of(node)
        other = self.pairs.get(node.id)
        if value is None or not is_telling(value):
            if value is None or not value.elements:
                return "unknown"
            if other is None:  # a mask has -Inf on purpose
                return "other" if value.greatest == math.inf and index.finite else "unknown"
            if not is_telling(value_of(self.there.nodes[other])):
                return "unknown"
            self.distances[node.id] = math.inf
            return "other"
        if other is not None:
            pair = self.there.nodes[other]
            theirs = value_of(pair)
            if theirs is not None and is_telling(theirs):
                tolerance = self.allowed(node.id, other)
                same_shape = shape_of(node) == shape_of(pair)
                found = distance(value, theirs, places=same_shape)
                self.distances[node.id] = found
                if found <= tolerance:
                    self.partners[node.id] = other
                    return "equal"
                unordered = distance(value, theirs, places=False)
                if unordered <= min(tolerance, _EXACT):
                    if found <= max(
                        _FAR * tolerance, MOVED
                    ):  # some elements differ, and sums hide it
                        return "other"
                    self.partners[node.id] = other
                    self.distances[node.id] = unordered
                    return "moved"
        others = list(index.like(value, min(self.allowed(node.id), _EXACT)))
        if others:
            return self._alike(node, value, others)
        alone = value.elements >= _FEW and self.allowed(node.id) <= _EXACT
        return "other" if alone or node.id in self.distances else "unknown"

    def _alike(self, node: Node, value: Fingerprint, others: list[int]) -> State:
        """Of some with the same elements the one that has them in the same places, if any has."""
        nodes, shape = self.there.nodes, shape_of(node)
        same = [other for other in others if shape_of(nodes[other]) == shape]
        limit = _FAR * self.allowed(node.id)
        here = [i for i in same if distance(value, _known(nodes[i]), places=True) <= limit]
        partner = (here or same or others)[0]
        self.partners[node.id] = partner
        self.distances[node.id] = distance(value, _known(nodes[partner]), places=bool(here))
        turns = self.here.nodes[node.id].operation in TRANSPOSES  # it is there to do so
        return "moved" if same and not here and not turns else "equal"

    def allowed(self, node: int, other: int | None = None) -> float:
        """Up to what two nodes' results are equal; None: one of whatever node."""
        if self.tolerance is not None:
            return self.tolerance
        return max(self._rounding[node], 0 if other is None else self._theirs[other])

    def apart(self) -> list[int]:
        """The nodes that have another value and hand it on to the outputs, inputs first.

        A result that the other graph has not, but after which it has all results again, is a step
        of the same computation in another form.
        """
        found: set[int] = set()
        stack = [node for node, _ in self.here.outputs]
        summing = set(stack)
        while stack:
            node = stack.pop()
            state = self.states[node]
            if node in found or (state in ("equal", "moved") and node not in summing):
                continue
            if self.here.nodes[node].leaf:
                continue
            found.add(node)
            value = value_of(self.here.nodes[node])
            for edge in self.inputs[node]:
                if node in summing and (value is None or value.elements < _SMALL):
                    summing.add(edge.source)
                stack.append(edge.source)
        return sorted(node for node in found if self.states[node] == "other")

    def error_before(self, node: int) -> float:
        """The largest distance of what a node was computed from, as far as it is known."""
        return max(
            (self.distances[i] for i in self.known_inputs(node) if i in self.distances), default=0.0
        )

    def readers(self, node: int) -> list[int]:
        """The nodes that read this one, once for each edge."""
        return [edge.target for edge in self.here.edges if edge.source == node]

    def known_inputs(self, node: int) -> list[int]:
        """The nearest nodes before one whose state is known, leaves included."""
        found: dict[int, None] = {}
        stack = [edge.source for edge in reversed(self.inputs[node])]
        entered: set[int] = set()
        while stack:
            source = stack.pop()
            if source in entered:
                continue
            entered.add(source)
            if self.states[source] != "unknown" or self.here.nodes[source].leaf:
                found[source] = None
            else:
                stack += [edge.source for edge in reversed(self.inputs[source])]
        return list(found)


class _Index:
    """The results of a graph by their number of elements and their norm."""

    def __init__(self, graph: Graph) -> None:
        rows: dict[int, list[tuple[float, int]]] = {}
        self._nodes = graph.nodes
        self.finite = True  # but for masks
        for node in graph.nodes:
            value = value_of(node)
            if value is not None and value.greatest == math.inf:
                self.finite = False
            if value is not None and is_telling(value) and value.elements >= _FEW:
                rows.setdefault(value.elements, []).append((value.norm, node.id))
        self._rows = {count: sorted(row) for count, row in rows.items()}

    def like(self, value: Fingerprint, tolerance: float) -> Iterator[int]:
        """The nodes whose results have the same elements, in whatever order."""
        row = self._rows.get(value.elements, [])
        if value.least == value.greatest:  # of zeros or ones there are many
            return
        end = value.norm * (1 + tolerance)
        for norm, node in row[bisect_left(row, (value.norm * (1 - tolerance), -1)) :]:
            if norm > end:
                return
            if distance(value, _known(self._nodes[node]), places=False) <= tolerance:
                yield node


def value_of(node: Node) -> Fingerprint | None:
    """Of its first result."""
    return next((value for value in node.fingerprints if value is not None), None)


def shape_of(node: Node) -> tuple[int, ...]:
    """Of its first output."""
    return next((meta.shape for meta in node.outputs if meta is not None), ())


def _known(node: Node) -> Fingerprint:
    value = value_of(node)
    assert value is not None
    return value
