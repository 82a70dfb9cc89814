"""List the nodes of a graph below the names of their modules, with identical blocks once.

Rows are in the order of forward. A parameter is listed just before its first user. Nodes are
grouped as in pictures, but only modules, backward passes and chains get a heading. Function calls
and runs (groups that only make a picture smaller) get no heading.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..graph import Graph, Node
from ..graph.immutable import NamedTuple
from . import labels
from .drawing.drawing import NOTHING
from .drawing.level import fold_repeats
from .groups.groups import Group, Groups, group

_MAX_GROUP_SIZE = 100  # maximum number of nodes and groups directly inside a group
_INDENT = "  "


class OutlineRow(NamedTuple):
    """A row of the outline: a node, or the heading of a group (`node` is None)."""

    text: str
    node: Node | None = None


def outline(graph: Graph, marks: Mapping[int, Collection[str]]) -> tuple[list[OutlineRow], bool]:
    """Return (rows of the outline, True if some nodes have no row).

    Args:
        graph: the graph.
        marks: node id -> texts to write at the node. If the node has no row, its texts are written
            at the heading of its group.
    """
    tree = group(graph, limit=_MAX_GROUP_SIZE)
    families = fold_repeats(NOTHING.having(graph=graph, groups=tree, fold=True)).families
    alike = {members[0]: members for level in families.values() for members in level}
    hidden = _hidden(tree, alike)
    rows: list[OutlineRow] = []
    open_: list[int] = []
    for i in sorted(range(len(graph.nodes)), key=tree.places.__getitem__):
        if i in hidden:
            continue
        around = [
            n
            for n in reversed(tree.with_ancestors(tree.of[i]))
            if _has_heading(tree.groups[n], alike)
        ]
        same = 0
        while same < min(len(around), len(open_)) and around[same] == open_[same]:
            same += 1
        for depth, number in enumerate(around[same:], same):
            members = alike.get(number, (number,))
            title = _INDENT * depth + _title(tree, members)
            chain = tree.groups[number].kind == "chain"
            said = (
                _marks_of_hidden(tree, members, hidden, marks) if chain or len(members) > 1 else ()
            )
            rows.append(OutlineRow("  ".join([title, *said])))
        open_ = around
        rows.append(OutlineRow(_INDENT * len(around) + _name(graph.nodes[i]), graph.nodes[i]))
    return rows, bool(hidden)


def _hidden(tree: Groups, alike: Mapping[int, tuple[int, ...]]) -> set[int]:
    """Return the nodes that get no row.

    These are the nodes of identical blocks except the first, and the inner nodes of chains.
    """
    hidden = {node for members in alike.values() for node in _nodes_in(tree, members[1:])}
    for part in tree.groups:
        if part.kind == "chain":
            hidden |= set(sorted(_nodes_in(tree, [part.id]), key=tree.places.__getitem__)[1:-1])
    return hidden


def _marks_of_hidden(
    tree: Groups,
    members: tuple[int, ...],
    hidden: set[int],
    marks: Mapping[int, Collection[str]],
) -> list[str]:
    """Return the marks of nodes without a row that no node with a row has.

    Args:
        tree: the groups.
        members: identical groups, whose nodes are considered.
        hidden: nodes without a row.
        marks: node id -> texts to write at the node.
    """
    said: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for node in _nodes_in(tree, members):
        said[node in hidden].update(dict.fromkeys(marks.get(node, ())))
    return [mark for mark in said[True] if mark not in said[False]]


def _nodes_in(tree: Groups, numbers: Collection[int]) -> Iterator[int]:
    for number in numbers:
        for inner in tree.with_descendants(number):
            yield from tree.groups[inner].nodes


def _has_heading(part: Group, alike: Mapping[int, tuple[int, ...]]) -> bool:
    return part.kind not in ("run", "call") or len(alike.get(part.id, ())) > 1


def _title(tree: Groups, members: tuple[int, ...]) -> str:
    first, last = tree.groups[members[0]], tree.groups[members[-1]]
    if first is last:
        return labels.with_class(first.name, first.module_class)
    ending = labels.row_ending(first.name, last.name)
    names = f"{first.name} … {ending} {labels.TIMES} {len(members)}"
    return labels.with_class(names, first.module_class)


def _name(node: Node) -> str:
    """Return the text of a node's row, such as "weight", "addmm", or "loss = mean" if named."""
    if node.leaf:
        return labels.local_name(node, node.label) or node.title
    title = labels.operation_text(node.title, node.attributes)
    return f"{node.label} = {title}" if node.label else title
