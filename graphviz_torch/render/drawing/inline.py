"""Drawing steps: write leaves inside the operation that uses them, and replace views with edges.

A carrier is an operation that only passes on a parameter or another leaf, such as the `t` of a
linear layer's weight. A carrier is also written inside the operation that uses it, unless it has a
name, several users or another device. In the drawing of a `diff`, a leaf keeps its own box if only
one graph has the leaf, but both graphs have the operation that uses it.

A view or reshape between two operations keeps its box if it has a name, computes an output, is the
only operation of its module, copies to another device, or is part of a finding, a cut or a
difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...graph import Edge, Graph, Node
from ...graph.collective import by_node
from ..groups.call_groups import RESHAPING
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


def fold_views(drawing: Drawing) -> Drawing:
    """Remove the boxes of views, connect their neighbors, and return the new drawing."""
    if drawing.options["detail"] == "full" or drawing.options["parameters"] == "nodes":
        return drawing
    computing = _count_computing(drawing.graph)
    views = _views(drawing, computing)
    if not views:
        return drawing
    inner, nodes = drawing.inner, drawing.graph.nodes
    uses = Counter([edge.source for edge in inner.edges])
    alone = {scope for scope, count in computing.items() if scope and count == 1}
    made: dict[int, tuple[int, int]] = {}  # view -> (node id, output_nr) of its base
    passed: dict[int, tuple[int, ...]] = {}  # view -> the chain of views that ends with it
    user = {**inner.user}
    edges: list[Edge] = []
    between: dict[Edge, tuple[int, ...]] = {}
    shown: dict[int, int] = {}
    for edge in by_target(inner.edges):
        begin, end = edge.source, edge.target
        source, output = begin, edge.output_nr
        before: tuple[int, ...] = ()
        if begin in views:
            (source, output), before = made[begin], passed[begin]
            if begin not in user:
                own = nodes[begin].scope
                made_here = nodes[source].scope == own != nodes[end].scope
                user[begin] = source if made_here else end
        elif end not in views:
            edges.append(edge)
            continue
        if end not in views:
            edges.append(Edge(source, end, output, edge.input_nr))
            between[edges[-1]] = before
            continue
        made[end], passed[end] = (source, output), (*before, end)
        one, other = nodes[source], nodes[end]
        same = one.scope == other.scope and (
            one.scope in alone or ("#" in one.call and one.call == other.call)
        )
        if same and uses[begin] == 1 and shown.get(source, source) == begin:
            shown[source] = end
    return drawing.having(
        inner=replace(
            inner,
            folded=inner.folded | made.keys(),
            edges=tuple(edges),
            user=user,
            views=between,
            shown=shown,
        )
    )


def _views(drawing: Drawing, computing: Counter[str]) -> set[int]:
    """Return the ids of the views to draw without a box.

    Args:
        drawing: the drawing.
        computing: for each module call, the number of operations that do more than reshape.
    """
    graph, inner = drawing.graph, drawing.inner
    nodes = graph.nodes
    found = {
        node.id
        for node in nodes
        if node.operation in RESHAPING and not (node.label or node.note) and len(node.outputs) == 1
    }
    if not found:
        return found
    found.difference_update(inner.folded, inner.inside, _marked_nodes(drawing))
    found.difference_update([node for node, _ in graph.outputs])
    found.difference_update(_view_modules(graph, found, computing))
    if not found:
        return found
    fed = Counter([edge.target for edge in inner.edges if edge.target in found])
    used = {edge.source for edge in inner.edges}
    found = {i for i in found if fed[i] == 1 and i in used}
    if drawing.shows_devices:
        found.difference_update([e.target for e in inner.edges if _moves(graph, e)])
    return found


def _moves(graph: Graph, edge: Edge) -> bool:
    return graph.nodes[edge.source].device != graph.nodes[edge.target].device


def _marked_nodes(drawing: Drawing) -> set[int]:
    """Return the nodes that must keep their boxes, because the picture marks them.

    These are the nodes of findings, differences, transfers, collectives and cuts, and the operands
    of the operation that raised.
    """
    graph = drawing.graph
    found = {node for finding in drawing.findings for node in finding.nodes}
    found.update(drawing.options["marks"] or ())
    found.update([copy.node for copy in graph.transfers if copy.node is not None])
    found.update(by_node(graph.collectives))
    for cut in graph.cuts:
        found.update([cut.before] if cut.before is not None else [], cut.after)
    if graph.failure is not None:
        found.update([part.node for part in graph.failure.operands if part.node is not None])
    return found


def _count_computing(graph: Graph) -> Counter[str]:
    """Count, for each module call (`Node.scope`), the operations that do more than reshape."""
    nodes = graph.nodes
    return Counter(
        [node.scope for node in nodes if not node.leaf and node.operation not in RESHAPING]
    )


def _view_modules(graph: Graph, views: Iterable[int], computing: Iterable[str]) -> list[int]:
    """Return those of the views that are in modules that contain only views, as `nn.Flatten`.

    Args:
        graph: the graph.
        views: ids of views.
        computing: module calls with operations that do more than reshape.
    """
    inside = {""}  # scopes that contain operations other than views
    for scope in computing:
        while scope not in inside:
            inside.add(scope)
            scope = scope.rpartition(".")[0]
    return [view for view in views if graph.nodes[view].scope not in inside]
