"""Drawing step: write parameters and other leaves inside the operation that uses them.

A carrier is an operation that only passes on such a leaf, such as the `t` of a linear layer's
weight; it is written inside the operation as well. A carrier with a name, with several users or on
another device keeps its own box. So does a leaf that a `diff` added or removed while the operation
that uses the leaf is in both graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graph import Edge, Graph, Node
from ..groups.chains import RESHAPING
from ..groups.order import by_target, has_modules
from ..options import Parameters
from .drawing import Drawing, InlinedNodes

# If there are more leaves, they are written inside, since as boxes they would form an unreadable
# staircase.
_MAX_LEAF_BOXES = 20
# A leaf with more users is written inside each of them. Its own box has no edges, which would
# distort the layout.
_MAX_LEAF_EDGES = 8


def inline_parameters(drawing: Drawing) -> Drawing:
    """Return the drawing with the field `inner`: the nodes that are written inside others."""
    graph = drawing.graph
    return drawing.having(
        inner=_inner(graph, drawing.options["parameters"], _marked_alone(drawing))
    )


def _marked_alone(drawing: Drawing) -> set[int]:
    """Return the leaves that a diff added or removed, if an operation that uses them stayed."""
    found: set[int] = set()
    marks = {i: m for i, m in (drawing.options["marks"] or {}).items() if m != "changed"}
    if not marks:
        return found
    nodes, users = drawing.graph.nodes, drawing.graph.users()
    for leaf in (i for i in marks if nodes[i].leaf):
        ends = [edge.target for edge in users[leaf]]
        for end in ends:  # the list grows during the loop
            if nodes[end].operation in RESHAPING:
                ends += [edge.target for edge in users[end]]
            elif marks.get(end) != marks[leaf]:
                found.add(leaf)
    return found


def _inner(graph: Graph, parameters: Parameters | None, alone: set[int]) -> InlinedNodes:
    nodes = graph.nodes
    leaves = [node for node in nodes if node.leaf]
    # numbers of outgoing and of incoming edges of each node
    uses, fed = [0] * len(nodes), [0] * len(nodes)
    for edge in graph.edges:
        uses[edge.source] += 1
        fed[edge.target] += 1
    folded = set() if parameters == "nodes" else _leaves(graph, leaves, uses, parameters)
    folded.difference_update([node for node, _ in graph.outputs], alone)
    many = {leaf.id: uses[leaf.id] for leaf in leaves if uses[leaf.id] > _MAX_LEAF_EDGES}
    if not folded and not many:
        return InlinedNodes(edges=graph.edges)
    inside: dict[int, list[Edge]] = {}
    rest: list[Edge] = []
    user: dict[int, int] = {}
    carried: dict[int, int] = {}
    inner = folded.union(many)
    # the order visits the edge into a carrier before the edge out of it
    for edge in by_target(graph):
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
    return InlinedNodes(frozenset(folded), tuple(rest), inside, carried, user, many)


def _leaves(
    graph: Graph, leaves: list[Node], uses: Sequence[int], parameters: Parameters | None
) -> set[int]:
    tensors = [leaf.leaf for leaf in leaves].count("tensor")
    all_tensors = tensors > _MAX_LEAF_BOXES
    all_parameters = tensors < len(leaves) and (
        parameters == "fold" or len(leaves) - tensors > _MAX_LEAF_BOXES or has_modules(graph)
    )
    return {
        leaf.id
        for leaf in leaves
        if (times := uses[leaf.id])
        and (all_tensors if leaf.leaf == "tensor" else all_parameters or times > _MAX_LEAF_EDGES)
    }


def _only_carries(graph: Graph, carrier: Node, device: str) -> bool:
    """Return True if a carrier has no name, note or second output, and its output is on
    `device`.
    """
    plain = not carrier.label and not carrier.note and len(carrier.outputs) < 2
    return plain and (carrier.id, 0) not in graph.outputs and carrier.device == device
