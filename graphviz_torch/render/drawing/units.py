"""The step that finds groups which are drawn as one operation: a linear layer, a loss, a norm.

A call of torch's is one whatever it computes, and so is a module of one call, a module that
computes element by element from one tensor, and views in a row. Of a large graph so is any module
of a few operations that reads one tensor. A group that an error, a difference, a copy between
devices, a collective or a name points into is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ...graph.collective import by_node
from .. import labels
from ..groups.chains import RESHAPING
from ..groups.groups import Group
from .drawing import Drawing, Unit

_MOST = 12  # operations of a module that is drawn as one in a large graph
_LARGE = 100  # nodes
_Output = tuple[int, int]  # a node and an output_nr


def find_units(drawing: Drawing) -> Drawing:
    """The drawing with its units, by group."""
    tree = drawing.groups
    if tree is None or drawing.draws_each:
        return drawing
    folded = drawing.inner.folded
    inside: dict[int, list[int]] = {}
    home: dict[int, int] = {}  # of a node, the group that may be a unit
    for part in _visible(drawing):
        if part.parent in inside or not _may_be_one(drawing, part):
            continue
        nodes = [i for inner in tree.below(part.id) for i in tree.groups[inner].nodes]
        nodes = [i for i in nodes if i not in folded]
        if len(nodes) > (part.kind != "call") and (part.kind != "module" or len(nodes) <= _MOST):
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
    pointed = {node for finding in errors for node in finding.nodes}
    pointed.update(drawing.options["marks"] or ())
    pointed.update([copy.node for copy in drawing.graph.transfers if copy.node is not None])
    pointed.update(by_node(drawing.graph.collectives))
    units: dict[int, Unit] = {}
    for number, ids in inside.items():
        made = {node for node, _ in makes[number]}
        if not pointed.isdisjoint(ids):
            continue
        if tree.groups[number].kind == "call":
            units[number] = Unit(max(made, key=ids.index, default=ids[-1]), tuple(ids))
        elif len(makes[number]) == 1:
            [node] = made
            if _tells_all(drawing, tree.groups[number], ids, node, len(reads[number])):
                units[number] = Unit(node, tuple(ids))
    return drawing.having(units=units)


def _visible(drawing: Drawing) -> list[Group]:
    """The groups that can be drawn: of those that are drawn once, the first of each family."""
    assert drawing.groups is not None
    groups = drawing.groups.groups
    if not drawing.fold:
        return [*groups]
    return [groups[first] for found in drawing.families.values() for first, *_ in found]


def is_torchs(drawing: Drawing, part: Group) -> bool:
    """Is a group a call of a function of torch's, and not of the program's own?"""
    if part.kind != "call" or not part.nodes:
        return False
    nodes = drawing.graph.nodes
    calls = [nodes[i].call for i in part.nodes if not nodes[i].leaf]
    return bool(calls) and calls[0].rpartition("/")[2] == part.name


def _may_be_one(drawing: Drawing, part: Group) -> bool:
    """Is it a call, a module or views in a row, with no more than that inside?"""
    assert drawing.groups is not None
    groups = drawing.groups.groups
    if part.kind == "module":
        children = [groups[n] for n in part.children]
        plain = all(c.kind == "chain" or is_torchs(drawing, c) for c in children)
        return plain and part.size <= 3 * _MOST
    return (part.kind == "chain" and not part.children) or is_torchs(drawing, part)


def _tells_all(drawing: Drawing, part: Group, ids: Sequence[int], end: int, reads: int) -> bool:
    nodes, inside = drawing.graph.nodes, drawing.inner.inside
    made = nodes[end].outputs
    if len(made) != 1 or any(nodes[i].leaf or (nodes[i].label and i != end) for i in ids):
        return False
    if part.kind == "chain":
        return all(nodes[i].operation in RESHAPING for i in ids)
    if len(_calls(drawing, ids)) < 2:
        return True
    if reads > 1:
        return False
    alike = not any(i in inside for i in ids) and all(nodes[i].outputs == made for i in ids)
    assert drawing.groups is not None
    around = drawing.groups.groups[drawing.start].size if drawing.start is not None else len(nodes)
    return alike or around > _LARGE


def _calls(drawing: Drawing, ids: Sequence[int]) -> set[object]:
    """What computes among nodes: each call of the program's, and each node of no such call."""
    calls = [(drawing.graph.nodes[i].call, i) for i in computing(drawing, ids)]
    return {call if "#" in call.rpartition("/")[2] else i for call, i in calls}


def computing(drawing: Drawing, ids: Sequence[int]) -> list[int]:
    """Those of the nodes that do more than reshape."""
    return [i for i in ids if drawing.graph.nodes[i].operation not in RESHAPING]


def called(drawing: Drawing, unit: Unit) -> str:
    """What a unit computes, in short.

    Of views in a row each stands there, of a layer the one computation, of others all they do.
    """
    nodes = drawing.graph.nodes
    ids = computing(drawing, unit.nodes)
    titles = [labels.called(nodes[i].title, nodes[i].attributes) for i in ids]
    if len(ids) == 1:
        return titles[0]
    if not ids:
        views = [nodes[i] for i in unit.nodes]
        return " → ".join([labels.called(v.title, v.attributes) for v in views])
    distinct = ", ".join(dict.fromkeys(nodes[i].title for i in ids))
    return f"{len(ids)} operations: {distinct}"
