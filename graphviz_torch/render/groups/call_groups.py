"""Groups of the nodes that one call made: of `F.cross_entropy`, or of a function of the program.

Names are those of `Node.call`: the program's functions outside of modules, then torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from ...graph import Graph
from .part_tree import Item, Name, Part

_Path = tuple[str, ...]  # the names of the calls around a node, outermost first


def gather_calls(graph: Graph, levels: Sequence[list[Item]]) -> list[Part]:
    """Put the nodes of each call that made several in a group, outer calls around inner ones.

    A call that made all nodes of a module has no group: the module says what it is.

    Args:
        levels: what is directly in each group, the top first, in topological order; they are
            changed.

    Returns:
        The groups.
    """
    nodes = graph.nodes
    parts: list[Part] = []
    for number, level in enumerate(levels):
        calls = {nodes[item].call for item in level if type(item) is int}
        if not any("#" in call or "/" in call for call in calls):
            continue
        if number and len(calls - {""}) == 1 and all(type(item) is int for item in level):
            continue  # of a module that one call made
        rows = [*zip(_paths(graph, level), level, strict=True)]
        found = _grouped(graph, rows, 0, parts, whole=number > 0)
        if len(found) < len(level):
            level[:] = found
    return parts


def _paths(graph: Graph, level: Sequence[Item]) -> list[_Path]:
    """The calls around each item; around a leaf are those of the first operation that reads it."""
    found: list[_Path] = []
    path: _Path = ()
    for item in reversed(level):
        if isinstance(item, Part):
            path = ()
        elif not graph.nodes[item].leaf:
            call = graph.nodes[item].call
            path = tuple(call.split("/")) if call else ()
        found.append(path)
    return found[::-1]


def _grouped(
    graph: Graph,
    rows: Sequence[tuple[_Path, Item]],
    depth: int,
    parts: list[Part],
    whole: bool,
) -> list[Item]:
    """The items, those of each call at a depth in a group.

    Args:
        whole: has the level a name already, which a call that made all of it needs no group for.
    """
    found: list[Item] = []
    at = 0
    for name, run in groupby(rows, key=lambda row: row[0][depth] if len(row[0]) > depth else ""):
        inside = [*run]
        at += len(inside)
        items: list[Item] = [*map(itemgetter(1), inside)]
        if not name:
            found += items
            continue
        made = sum(type(item) is int and not graph.nodes[item].leaf for item in items)
        last = all(len(path) == depth + 1 for path, _ in inside)
        single = last and "#" not in name  # calls that made a node each
        named = single or made < 2 or (whole and len(inside) == len(rows))
        part = Part("call", Name(name, f"{name}#", 1, 1), [])
        if not named:
            parts.append(part)  # before those in it
        if not last:
            items = _grouped(graph, inside, depth + 1, parts, whole=True)
        part.items = items
        found += items if named else [part]
    return found
