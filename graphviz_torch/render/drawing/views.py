"""Drawing step: replace the views and reshapes between two operations with an edge.

A view keeps its box if it has a name, computes an output, is the only operation of its module,
copies to another device, or is part of a finding, a cut or a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ...graph import Edge, Graph
from ...graph.collective import by_node
from ..groups.chains import RESHAPING
from ..groups.order import by_target
from .drawing import Drawing


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
