"""What differs between two graphs, for the view of both in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from ...graph import Edge, Graph, Node
from ...graph.text import at_most

_MOST_EDGES = 2  # that a line names


class Change(Protocol):
    """One thing about a node of both graphs that differs."""

    @property
    def b(self) -> int:
        """The node's id in the second graph."""

    @property
    def what(self) -> str:
        """Return the names of the fields that differ: "shape", "device", "gradient", ..."""

    @property
    def before(self) -> str:
        """As it was in the first graph."""

    @property
    def after(self) -> str:
        """As it is in the second."""


@runtime_checkable
class Difference(Protocol):
    """A `GraphDiff`, as far as the view reads it."""

    a: Graph
    b: Graph
    pairs: tuple[tuple[int, int], ...]
    changed: tuple[Any, ...]
    added_edges: tuple[Edge, ...]  # with ids of b
    removed_edges: tuple[Edge, ...]  # with ids of a
    titles: tuple[str, str]  # what a reader calls the two

    @property
    def direction(self) -> str:
        """Return a title such as "From MLP to Detached layer"."""

    def union(self) -> Graph:
        """Both graphs in one: the nodes of `b` in their order, those of `a` alone between them."""

    def marks(self) -> Mapping[int, Any]:
        """For each node of `union()` that differs, "added", "removed" or "changed"."""


def difference(diff: Difference, union: Graph) -> dict[str, Any]:
    """The part of a payload's header that tells of `diff`; ids are those of its `union`."""
    marks = diff.marks()
    place = [node.id for node in union.nodes if marks.get(node.id) != "removed"]  # of each id in b
    changes: dict[int, list[tuple[str, str, str]]] = {}
    for change in diff.changed:
        row = (change.what, change.before, change.after)
        changes.setdefault(place[change.b], []).append(row)
    added = {
        edge._replace(source=place[edge.source], target=place[edge.target])
        for edge in diff.added_edges
    }
    edges = [edge for at_node in union.inputs() for edge in at_node]  # as the payload's columns
    return {
        "marks": sorted(marks.items()),
        "changes": changes,
        "edges": list(_edges(diff)),
        "addedEdges": [at for at, edge in enumerate(edges) if edge in added],
    }


def summed_up(diff: Difference) -> str:
    """From which graph to which, and which edges of nodes of both went or came: a line of text.

    The picture of both graphs shows all else.
    """
    edges = list(_edges(diff))
    listed = f" Edges: {'; '.join(at_most(edges, _MOST_EDGES))}." if edges else ""
    return f"{diff.direction}.{listed}"


def _edges(diff: Difference) -> Iterator[str]:
    """In words, the edges of one graph alone between nodes of both."""
    in_a, in_b = {a for a, _ in diff.pairs}, {b for _, b in diff.pairs}
    yield from _words("\N{MINUS SIGN}", diff.removed_edges, diff.a.nodes, in_a)
    yield from _words("+", diff.added_edges, diff.b.nodes, in_b)


def _words(
    sign: str, edges: Iterable[Edge], nodes: tuple[Node, ...], both: set[int]
) -> Iterator[str]:
    for edge in edges:
        if edge.source in both and edge.target in both:
            source, target = (nodes[node] for node in (edge.source, edge.target))
            names = [one.label or one.title for one in (source, target)]
            yield f"{sign} {names[0]} → {names[1]}, input {edge.input_nr}"
