"""Drawing step: find groups to draw as one operation, such as a linear layer, loss or norm.

Calls of torch functions, modules that make one such call, elementwise modules with one input, and
chains of views are fused. In a large graph, modules of a few operations with one input are fused
too. A group is never fused if it contains an error, a difference, a copy between devices, a
collective or a named tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ...graph.collective import by_node
from .. import labels
from ..groups.call_groups import RESHAPING
from ..groups.groups import Group
from .drawing import Drawing
from .values import FusedNode

_MAX_FUSED_OPERATIONS = 12
_MIN_NODES_LARGE_GRAPH = 100
_Output = tuple[int, int]  # (node id, output_nr)


def fuse_groups(drawing: Drawing) -> Drawing:
    """Compute `Drawing.fused`, which maps groups to fused nodes, and return the new drawing."""
    tree = drawing.groups
    if tree is None or drawing.draws_each:
        return drawing
    folded = drawing.inner.folded
    inside: dict[int, list[int]] = {}
    home: dict[int, int] = {}  # node -> the candidate group that contains it
    for part in _visible(drawing):
        if part.parent in inside or not _is_candidate(drawing, part):
            continue
        nodes = [i for inner in tree.with_descendants(part.id) for i in tree.groups[inner].nodes]
        nodes = [i for i in nodes if i not in folded]
        small = part.kind != "module" or len(nodes) <= _MAX_FUSED_OPERATIONS
        if len(nodes) > (part.kind != "call") and (small or _is_one_call(drawing, part)):
            inside[part.id] = sorted(nodes, key=tree.places.__getitem__)
            home.update(dict.fromkeys(nodes, part.id))
    if not inside:
        return drawing
    reads: dict[int, set[_Output]] = defaultdict(set)
    makes: dict[int, set[_Output]] = defaultdict(set)
    for edge in drawing.inner.edges:
        start, end = home.get(edge.source), home.get(edge.target)
        if start != end:
            if start is not None:
                makes[start].add((edge.source, edge.output_nr))
            if end is not None:
                reads[end].add((edge.source, edge.output_nr))
    for node, output_nr in drawing.graph.outputs:
        if node in home:
            makes[home[node]].add((node, output_nr))
    errors = [finding for finding in drawing.findings if finding.severity == "error"]
    marked = {node for finding in errors for node in finding.nodes}
    marked.update(drawing.options["marks"] or ())
    marked.update([copy.node for copy in drawing.graph.transfers if copy.node is not None])
    marked.update(by_node(drawing.graph.collectives))
    units: dict[int, FusedNode] = {}
    leaves = {node.id for node in drawing.graph.nodes if node.leaf}
    for number, ids in inside.items():
        made = {node for node, _ in makes[number]}
        if not marked.isdisjoint(ids):
            continue
        part = tree.groups[number]
        # An input that is drawn in the frame of its first module would be hidden.
        is_call = leaves.isdisjoint(ids) and _is_one_call(drawing, part)
        if part.kind == "call" or is_call:
            units[number] = FusedNode(max(made, key=ids.index, default=ids[-1]), tuple(ids))
        elif len(makes[number]) == 1:
            [node] = made
            if _can_fuse(drawing, part, ids, node, len(reads[number])):
                units[number] = FusedNode(node, tuple(ids))
    return drawing.having(fused=units)


def _visible(drawing: Drawing) -> list[Group]:
    """Return the groups that can be drawn. Of several identical groups, only the first can."""
    assert drawing.groups is not None
    groups = drawing.groups.groups
    if not drawing.fold:
        return [*groups]
    return [groups[first] for found in drawing.families.values() for first, *_ in found]


def is_torch_call(drawing: Drawing, part: Group) -> bool:
    """Return True if a group is one call of a torch function (not of a function of the program)."""
    if part.kind != "call" or drawing.groups is None:
        return False
    nodes, tree = drawing.graph.nodes, drawing.groups
    inside = (i for number in tree.with_descendants(part.id) for i in tree.groups[number].nodes)
    first = next((i for i in inside if not nodes[i].leaf), None)
    return first is not None and nodes[first].call.rpartition("/")[2] == part.name


def _is_one_call(drawing: Drawing, part: Group) -> bool:
    """Return True if all operations of a module are of one call, such as those of an nn.GRU."""
    assert drawing.groups is not None
    groups, nodes = drawing.groups.groups, drawing.graph.nodes
    if part.kind != "module":
        return False
    inside = drawing.groups.with_descendants(part.id)[1:]
    if any(groups[number].kind in ("module", "call") for number in inside):
        return False
    calls = {
        nodes[i].call for n in (part.id, *inside) for i in groups[n].nodes if not nodes[i].leaf
    }
    return len(calls) == 1 and "" not in calls


def _is_candidate(drawing: Drawing, part: Group) -> bool:
    """Return True if a group may be fused.

    Candidates are a call of a torch function, a chain of views, and a small module that contains
    only such calls and chains.
    """
    assert drawing.groups is not None
    groups = drawing.groups.groups
    if part.kind == "module":
        children = [groups[n] for n in part.children]
        plain = all(c.kind == "chain" or is_torch_call(drawing, c) for c in children)
        small = plain and part.size <= 3 * _MAX_FUSED_OPERATIONS
        return small or _is_one_call(drawing, part)
    return (part.kind == "chain" and not part.children) or is_torch_call(drawing, part)


def _can_fuse(drawing: Drawing, part: Group, ids: Sequence[int], end: int, reads: int) -> bool:
    nodes, inside = drawing.graph.nodes, drawing.inner.inside
    made = nodes[end].outputs
    if len(made) != 1 or any(nodes[i].leaf or (nodes[i].label and i != end) for i in ids):
        return False
    if part.kind == "chain":
        return all(nodes[i].operation in RESHAPING for i in ids)
    if len(_distinct_calls(drawing, ids)) < 2:
        return True
    if reads > 1:
        return False
    alike = not any(i in inside for i in ids) and all(nodes[i].outputs == made for i in ids)
    assert drawing.groups is not None
    around = drawing.groups.groups[drawing.start].size if drawing.start is not None else len(nodes)
    return alike or around > _MIN_NODES_LARGE_GRAPH


def _distinct_calls(drawing: Drawing, ids: Sequence[int]) -> set[object]:
    """Return the distinct calls that created the nodes.

    For a node whose call has no number ("linear#2" has one), the result contains the node's id.
    """
    calls = [(drawing.graph.nodes[i].call, i) for i in computing(drawing, ids)]
    return {call if "#" in call.rpartition("/")[2] else i for call, i in calls}


def computing(drawing: Drawing, ids: Sequence[int]) -> list[int]:
    """Return the nodes whose operation does more than reshape a tensor."""
    return [i for i in ids if drawing.graph.nodes[i].operation not in RESHAPING]


def fused_text(drawing: Drawing, unit: FusedNode) -> str:
    """Return the text of a fused node.

    If exactly one operation of the fused node is not a view, the text is its name. If all are
    views, the text is their names. Otherwise the text is the number and names of the operations.
    """
    nodes = drawing.graph.nodes
    ids = computing(drawing, unit.nodes)
    titles = [labels.operation_text(nodes[i].title, nodes[i].attributes) for i in ids]
    if len(ids) == 1:
        return titles[0]
    if not ids:
        views = [nodes[i] for i in unit.nodes]
        return " → ".join([labels.operation_text(v.title, v.attributes) for v in views])
    distinct = ", ".join(dict.fromkeys(nodes[i].title for i in ids))
    return f"{len(ids)} operations: {distinct}"
