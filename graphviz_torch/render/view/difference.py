"""Encode the difference of two graphs, for a view that shows both in one graph; title a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from ...graph import Edge, Graph, Node
from ...graph.text import first_items, listing

_MAX_EDGES_NAMED = 2  # maximum number of edges named in a line


@runtime_checkable
class Difference(Protocol):
    """Interface of a difference between graphs `a` and `b`.

    It lists the attributes of `GraphDiff` that pictures and the view read.
    """

    a: Graph
    b: Graph
    pairs: tuple[tuple[int, int], ...]
    changed: tuple[Any, ...]
    added_edges: tuple[Edge, ...]  # edges that only b has, with node ids of b
    removed_edges: tuple[Edge, ...]  # edges that only a has, with node ids of a
    titles: tuple[str, str]  # names of a and b

    @property
    def direction(self) -> str:
        """Title such as "From MLP to Detached layer"."""

    def union(self) -> Graph:
        """Return a graph with the nodes of `b` and, between them, the nodes that only `a` has."""

    def marks(self) -> Mapping[int, Any]:
        """Return id of a node in `union()` -> "added", "removed" or "changed"."""


def difference(diff: Difference, union: Graph) -> dict[str, Any]:
    """Return the fields of the payload's header that describe a diff.

    Args:
        diff: the diff.
        union: the union of its graphs, whose node ids the fields use.
    """
    marks = diff.marks()
    # id in b -> id in the union
    place = [node.id for node in union.nodes if marks.get(node.id) != "removed"]
    changes: dict[int, list[tuple[str, str, str]]] = {}
    for change in diff.changed:
        row = (change.what, change.before, change.after)
        changes.setdefault(place[change.b], []).append(row)
    added = {
        edge._replace(source=place[edge.source], target=place[edge.target])
        for edge in diff.added_edges
    }
    # The payload lists edges in this order.
    edges = [edge for at_node in union.inputs() for edge in at_node]
    return {
        "marks": sorted(marks.items()),
        "changes": changes,
        "edges": list(_edges(diff)),
        "addedEdges": [at for at, edge in enumerate(edges) if edge in added],
    }


def difference_line(diff: Difference) -> str:
    """Return the line below the picture of a diff.

    The line contains the direction, and edges between common nodes that only one graph has. The
    picture shows all other differences.
    """
    edges = list(_edges(diff))
    listed = f" Edges: {'; '.join(first_items(edges, _MAX_EDGES_NAMED))}." if edges else ""
    return f"{diff.direction}.{listed}"


def _edges(diff: Difference) -> Iterator[str]:
    """Yield, as text, the edges between common nodes that only one of the graphs has."""
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


_MAX_OUTPUTS_NAMED = 3


def title_of(graph: Graph | Difference) -> str:
    """Return a title with the names of the outputs: "Autograd graph of loss".

    >>> from graphviz_torch.graph import Node
    >>> title_of(Graph((Node(0, "MeanBackward0", (None,), label="loss"),), outputs=((0, 0),)))
    'Autograd graph of loss'
    >>> title_of(Graph(()))
    'Autograd graph'
    """
    if isinstance(graph, Difference):
        if any(graph.titles):
            return graph.direction
        before, after = _names(graph.a) or "a graph", _names(graph.b) or "a graph"
        return f"From {before} to {after}" if before != after else f"Two graphs of {after}"
    names = _names(graph)
    return f"Autograd graph of {names}" if names else "Autograd graph"


def _names(graph: Graph) -> str:
    nodes = [graph.nodes[node] for node, _ in graph.outputs]
    return listing(
        dict.fromkeys(node.label or node.title for node in nodes), _MAX_OUTPUTS_NAMED, last=", "
    )
