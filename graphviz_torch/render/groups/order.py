"""The order of nodes in which groups are cut: what a step of a loop reads stands in that step."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ...graph import Edge, Graph

# Without modules, an order is good enough if every result is used within so many nodes.
_NEAR = 100


def by_target(graph: Graph) -> Sequence[Edge]:
    """The edges in the order of their targets, as `trace` gives them."""
    targets = [edge.target for edge in graph.edges]
    in_order = targets == sorted(targets)
    return graph.edges if in_order else sorted(graph.edges, key=attrgetter("target"))


def order_of(graph: Graph, edges: Sequence[Edge]) -> list[int]:
    """All nodes in a topological order in which what a step of a loop reads stands in that step."""
    if not any(node.scope for node in graph.nodes):
        backwards = [edge for edge in reversed(edges) if not graph.nodes[edge.source].leaf]
        first = {edge.source: edge.target for edge in backwards}  # user of each operation
        if all(user - source <= _NEAR for source, user in first.items()):
            return list(range(len(graph.nodes)))
    return _near_users(graph, edges)


def _near_users(graph: Graph, edges: Sequence[Edge]) -> list[int]:
    """It goes back from the outputs, the longest way first.

    So a short branch, such as the input of one step, comes right before its user and not before the
    whole loop.
    """
    inputs: list[list[int]] = [[] for _ in graph.nodes]
    is_end = [True] * len(graph.nodes)
    depth = [0] * len(graph.nodes)
    for edge in edges:
        source, target = edge.source, edge.target
        inputs[target].append(source)
        is_end[source] = False
        if depth[source] >= depth[target]:
            depth[target] = depth[source] + 1
    order: list[int] = []
    seen = [False] * len(graph.nodes)
    stack = [i for i in reversed(range(len(graph.nodes))) if is_end[i]]
    while stack:
        i = stack.pop()
        if i < 0:  # all that it reads is in order
            order.append(~i)
        elif not seen[i]:
            seen[i] = True
            stack.append(~i)
            sources = inputs[i]
            if len(sources) > 1:
                sources.reverse()  # the last is taken first: of equal ones the first input
                sources.sort(key=depth.__getitem__)
            stack += sources
    return order


def places_of(order: list[int]) -> list[int]:
    """Where each node stands in an order."""
    places = [0] * len(order)
    for place, i in enumerate(order):
        places[i] = place
    return places
