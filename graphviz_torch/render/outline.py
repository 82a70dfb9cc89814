"""The nodes of a graph in rows under the names of their modules, of blocks alike the first alone.

Rows stand in the order of the forward, a parameter just before its first user. The groups are those
of the pictures; runs of equal size, which only make a picture smaller, and calls have no heading.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from ..graph import Graph, Node
from . import labels
from .drawing.drawing import NOTHING
from .drawing.fold import fold_repeats
from .groups.groups import Group, Groups, group

_LEVEL = 100  # things directly in a group, at most
_INDENT = "  "


class Row(NamedTuple):
    """A node, or a heading above those inside a group."""

    text: str
    node: Node | None = None


def outline(graph: Graph, marks: Mapping[int, Collection[str]]) -> tuple[list[Row], bool]:
    """The rows, and whether some nodes have none.

    Args:
        marks: what to say of a node; of one that is not listed, the heading says it.
    """
    tree = group(graph, limit=_LEVEL)
    families = fold_repeats(NOTHING.having(graph=graph, groups=tree, fold=True)).families
    alike = {members[0]: members for level in families.values() for members in level}
    hidden = _hidden(tree, alike)
    rows: list[Row] = []
    open_: list[int] = []
    for i in sorted(range(len(graph.nodes)), key=tree.places.__getitem__):
        if i in hidden:
            continue
        around = [
            n for n in reversed(tree.with_ancestors(tree.of[i])) if _titled(tree.groups[n], alike)
        ]
        same = 0
        while same < min(len(around), len(open_)) and around[same] == open_[same]:
            same += 1
        for depth, number in enumerate(around[same:], same):
            members = alike.get(number, (number,))
            title = _INDENT * depth + _title(tree, members)
            chain = tree.groups[number].kind == "chain"
            said = _unlisted(tree, members, hidden, marks) if chain or len(members) > 1 else ()
            rows.append(Row("  ".join([title, *said])))
        open_ = around
        rows.append(Row(_INDENT * len(around) + _name(graph.nodes[i]), graph.nodes[i]))
    return rows, bool(hidden)


def _hidden(tree: Groups, alike: Mapping[int, tuple[int, ...]]) -> set[int]:
    """The nodes of all blocks that are like another, and of chains all between first and last."""
    hidden = {node for members in alike.values() for node in _inside(tree, members[1:])}
    for part in tree.groups:
        if part.kind == "chain":
            hidden |= set(sorted(_inside(tree, [part.id]), key=tree.places.__getitem__)[1:-1])
    return hidden


def _unlisted(
    tree: Groups,
    members: tuple[int, ...],
    hidden: set[int],
    marks: Mapping[int, Collection[str]],
) -> list[str]:
    """The marks of nodes that are not listed, without those that a listed one has, too."""
    said: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for node in _inside(tree, members):
        said[node in hidden].update(dict.fromkeys(marks.get(node, ())))
    return [mark for mark in said[True] if mark not in said[False]]


def _inside(tree: Groups, numbers: Collection[int]) -> Iterator[int]:
    for number in numbers:
        for inner in tree.with_descendants(number):
            yield from tree.groups[inner].nodes


def _titled(part: Group, alike: Mapping[int, tuple[int, ...]]) -> bool:
    return part.kind not in ("run", "call") or len(alike.get(part.id, ())) > 1


def _title(tree: Groups, members: tuple[int, ...]) -> str:
    first, last = tree.groups[members[0]], tree.groups[members[-1]]
    if first is last:
        return labels.classed(first.name, first.module_class)
    ending = labels.ending(first.name, last.name)
    names = f"{first.name} … {ending} {labels.TIMES} {len(members)}"
    return labels.classed(names, first.module_class)


def _name(node: Node) -> str:
    """Return a parameter's name, an operation's kind, or "loss = mean" if its result has a name."""
    if node.leaf:
        return labels.within(node, node.label) or node.title
    title = labels.called(node.title, node.attributes)
    return f"{node.label} = {title}" if node.label else title
