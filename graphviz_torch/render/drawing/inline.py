"""The step that writes parameters inside the operation that uses them, not as nodes.

So are leaves, and carriers: operations that only hand one such leaf on, as the `t` of a linear
module's weight does. A carrier that a reader must see stays a node: one that was named, that has
several users, or that copies to another device. So does a leaf that a `diff` added or removed,
where its operation is in both graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graph import Edge, Graph, Node
from ..groups.chains import RESHAPING
from ..groups.order import by_target, in_modules
from ..options import Parameters
from .drawing import Drawing, Inner

# More leaves than this are written inside the operation that uses them: as nodes of their own they
# would stand in a staircase that nobody can read.
_MOST_LEAVES = 20
# A leaf with more users than this is written inside each, and its own node stands alone: with all
# these edges it would pull the whole drawing out of shape.
_MOST_USERS = 8


def inline_parameters(drawing: Drawing) -> Drawing:
    """The drawing with what is written inside the operations that use it."""
    graph = drawing.graph
    return drawing.having(inner=_inner(graph, drawing.options["parameters"], _alone(drawing)))


def _alone(drawing: Drawing) -> set[int]:
    """The leaves that were added or removed where an operation that uses them was not."""
    found: set[int] = set()
    marks = {i: m for i, m in (drawing.options["marks"] or {}).items() if m != "changed"}
    if not marks:
        return found
    nodes, users = drawing.graph.nodes, drawing.graph.users()
    for leaf in (i for i in marks if nodes[i].leaf):
        ends = [edge.target for edge in users[leaf]]
        for end in ends:  # which grows
            if nodes[end].operation in RESHAPING:
                ends += [edge.target for edge in users[end]]
            elif marks.get(end) != marks[leaf]:
                found.add(leaf)
    return found


def _inner(graph: Graph, parameters: Parameters | None, alone: set[int]) -> Inner:
    nodes = graph.nodes
    leaves = [node for node in nodes if node.leaf]
    uses, fed = [0] * len(nodes), [0] * len(nodes)  # by node, the edges from it and to it
    for edge in graph.edges:
        uses[edge.source] += 1
        fed[edge.target] += 1
    folded = set() if parameters == "nodes" else _leaves(graph, leaves, uses, parameters)
    folded.difference_update([node for node, _ in graph.outputs], alone)
    many = {leaf.id: uses[leaf.id] for leaf in leaves if uses[leaf.id] > _MOST_USERS}
    if not folded and not many:
        return Inner(edges=graph.edges)
    inside: dict[int, list[Edge]] = {}
    rest: list[Edge] = []
    user: dict[int, int] = {}
    carried: dict[int, int] = {}
    inner = folded.union(many)
    for edge in by_target(graph):  # so the edge into a carrier comes before the one out of it
        source, target = edge.source, edge.target
        if source not in inner:
            rest.append(edge)
            continue
        if source not in user:
            user[source] = target
        if (
            nodes[target].operation in RESHAPING
            and fed[target] == uses[target] == 1
            and source in folded
            and _only_carries(graph, nodes[target], nodes[source].device)
        ):
            folded.add(target)
            inner.add(target)
            carried[target] = source
        elif target in inside:
            inside[target].append(edge)
        else:
            inside[target] = [edge]
    return Inner(frozenset(folded), tuple(rest), inside, carried, user, many)


def _leaves(
    graph: Graph, leaves: list[Node], uses: Sequence[int], parameters: Parameters | None
) -> set[int]:
    tensors = [leaf.leaf for leaf in leaves].count("tensor")
    all_tensors = tensors > _MOST_LEAVES
    all_parameters = tensors < len(leaves) and (
        parameters == "fold" or len(leaves) - tensors > _MOST_LEAVES or in_modules(graph)
    )
    return {
        leaf.id
        for leaf in leaves
        if (times := uses[leaf.id])
        and (all_tensors if leaf.leaf == "tensor" else all_parameters or times > _MOST_USERS)
    }


def _only_carries(graph: Graph, carrier: Node, device: str) -> bool:
    """Is there nothing that a reader must see, and is the result still on `device`?"""
    plain = not carrier.label and not carrier.note and len(carrier.outputs) < 2
    return plain and (carrier.id, 0) not in graph.outputs and carrier.device == device
