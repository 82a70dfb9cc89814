"""Drawing step: write parameters and other leaves inside the operation that uses them.

A carrier is an operation that only passes on such a leaf, such as the `t` of a linear layer's
weight. A carrier is also written inside the operation that uses it, unless it has a name, several
users or another device.

In the drawing of a `diff`, a leaf keeps its own box if only one graph has the leaf, but both graphs
have the operation that uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graph import Edge, Graph, Node
from ..groups.chains import RESHAPING
from ..groups.order import by_target, has_modules
from ..options import Parameters
from .drawing import Drawing
from .values import InlinedNodes

# If there are more leaves than this, they get no boxes and are written inside operations. So many
# boxes would form an unreadable staircase.
_MAX_LEAF_BOXES = 20
# A leaf with more users than this is named inside the box of each user. If the leaf has a box, too,
# no edges are drawn from this box, because so many edges would distort the layout.
_MAX_LEAF_EDGES = 8


def inline_parameters(drawing: Drawing) -> Drawing:
    """Compute `Drawing.inner`, the nodes written inside other boxes, and return the new drawing."""
    graph = drawing.graph
    return drawing.having(
        inner=_inner(graph, drawing.options["parameters"], _marked_alone(drawing))
    )


def _marked_alone(drawing: Drawing) -> set[int]:
    """Return the leaves that only one graph of a diff has, but whose user is in both graphs."""
    found: set[int] = set()
    marks = {i: m for i, m in (drawing.options["marks"] or {}).items() if m != "changed"}
    if not marks:
        return found
    nodes, users = drawing.graph.nodes, drawing.graph.users()
    for leaf in (i for i in marks if nodes[i].leaf):
        ends = [edge.target for edge in users[leaf]]
        for end in ends:  # the loop appends the users of reshaping operations
            if nodes[end].operation in RESHAPING:
                ends += [edge.target for edge in users[end]]
            elif marks.get(end) != marks[leaf]:
                found.add(leaf)
    return found


def _inner(graph: Graph, parameters: Parameters | None, alone: set[int]) -> InlinedNodes:
    nodes = graph.nodes
    leaves = [node for node in nodes if node.leaf]
    # number of outgoing, and of incoming, edges of each node
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
    # Edges are sorted by target, so a carrier's incoming edge is visited before its outgoing edge.
    for edge in by_target(graph.edges):
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
    """Return True if a carrier needs no box, because the box would show nothing besides its leaf.

    Such a carrier has no name and no `Node.note`. Its only output is on `device`, and is not an
    output of the graph.
    """
    plain = not carrier.label and not carrier.note and len(carrier.outputs) < 2
    return plain and (carrier.id, 0) not in graph.outputs and carrier.device == device
