"""Choose the topological order of the nodes. Each group is a consecutive range in this order.

If backward was recorded, the order is the execution order of forward, which is the reverse of the
order in which backward ran the nodes. A group of consecutive nodes then never feeds its own input.
If backward was not recorded, each node that a step of a loop reads is placed directly before the
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf
from operator import attrgetter

from ...graph import Edge, Graph

# Without modules and a recorded backward, the nodes are ordered by id, unless an edge connects two
# nodes whose ids differ by more than this.
_MAX_DISTANCE_TO_USER = 100


def by_target(edges: Sequence[Edge]) -> Sequence[Edge]:
    """Return the edges sorted by target; edges that are sorted already are not copied."""
    targets = [edge.target for edge in edges]
    in_order = targets == sorted(targets)
    return edges if in_order else sorted(edges, key=attrgetter("target"))


def has_modules(graph: Graph) -> bool:
    """Return True if any node has a recorded module."""
    return any(any(map(attrgetter(name), graph.nodes)) for name in ("scope", "module_class"))


def order_of(graph: Graph, edges: Sequence[Edge]) -> tuple[bool, list[int]]:
    """Return (True if the order is the execution order, all nodes in topological order)."""
    ran = [node.order for node in graph.nodes]
    if ran.count(None) < len(ran):
        return True, _execution_order(ran, edges)
    return False, _by_edges(graph, edges)


def interrupted_containers(scopes: Sequence[str]) -> set[str]:
    """Return the paths of containers whose calls of modules were interrupted by other operations.

    An example is an `nn.ModuleList` of layers, with other operations between two layers.

    Args:
        scopes: scopes (paths of module calls) of the nodes, in execution order.

    >>> interrupted_containers(["h.0", "h.1", "", "h.2", "a.b", "a"]) == {"h"}
    True
    """
    called = {"", *scopes}
    # scope -> prefixes of its path that are not scopes, because no operation ran directly in them
    containers: dict[str, set[str]] = {}
    for scope in called:
        path, containers[scope] = scope, set()
        while "." in path:
            path = path.rpartition(".")[0]
            if path not in called:
                containers[scope].add(path)
    found: set[str] = set()
    left: set[str] = set()
    around: set[str] = set()
    for scope in scopes if any(containers.values()) else ():
        here = containers[scope]
        if here != around:
            found |= (here - around) & left
            left |= around - here
            around = here
    return found


def _execution_order(ran: Sequence[int | None], edges: Sequence[Edge]) -> list[int]:
    """Return the reverse of the order in which backward ran the nodes.

    A node that backward did not run is placed directly before its user.
    """
    if None not in ran:
        order = sorted(range(len(ran)), key=ran.__getitem__, reverse=True)  # type: ignore[arg-type]
        places = places_of(order)
        if True not in [places[edge.source] >= places[edge.target] for edge in edges]:
            return order
    waiting = [0] * len(ran)
    sources: list[list[int]] = [[] for _ in ran]
    for edge in edges:
        waiting[edge.source] += 1
        sources[edge.target].append(edge.source)
    ends = [i for i, users in enumerate(waiting) if not users]
    ready = [(inf if (own := ran[i]) is None else float(own), -i) for i in ends]
    heapify(ready)
    last_first: list[int] = []
    while ready:
        when, i = heappop(ready)
        last_first.append(-i)
        for source in sources[-i]:
            waiting[source] -= 1
            if not waiting[source]:
                own = ran[source]
                heappush(ready, (when if own is None else float(own), -source))
    return last_first[::-1]


def _by_edges(graph: Graph, edges: Sequence[Edge]) -> list[int]:
    if not any(map(attrgetter("scope"), graph.nodes)):
        backwards = [edge for edge in reversed(edges) if not graph.nodes[edge.source].leaf]
        first = {edge.source: edge.target for edge in backwards}  # user of each operation
        if all(user - source <= _MAX_DISTANCE_TO_USER for source, user in first.items()):
            return list(range(len(graph.nodes)))
    return _near_users(graph, edges)


def _near_users(graph: Graph, edges: Sequence[Edge]) -> list[int]:
    """Return the nodes in the order of a depth-first search from the outputs, longest branch first.

    A short branch, such as the input of one step of a loop, is therefore placed directly before its
    user, and not before the whole loop.
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
        if i < 0:  # ~i is a node whose inputs are all in `order`
            order.append(~i)
        elif not seen[i]:
            seen[i] = True
            stack.append(~i)
            sources = inputs[i]
            if len(sources) > 1:
                # Sources at the end of the list are visited first: the deepest ones, and among
                # equally deep ones the source of the first input, because the sort is stable.
                sources.reverse()
                sources.sort(key=depth.__getitem__)
            stack += sources
    return order


def places_of(order: list[int]) -> list[int]:
    """Return node id -> position in `order`, as a list."""
    places = [0] * len(order)
    for place, i in enumerate(order):
        places[i] = place
    return places
