"""Groups of the nodes of one function call, of torch or of the program.

Their names come from `Node.call`: functions of the program outside of modules, then those of torch,
such as "cross_entropy".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from ...graph import Graph
from .part_tree import Item, Part, RangeName

_Path = tuple[str, ...]  # the names of the calls around a node, outermost first


def gather_calls(graph: Graph, levels: Sequence[list[Item]]) -> list[Part]:
    """Put the nodes of each call that made several in a group, outer calls around inner ones.

    A call that made all nodes of a module gets no group, as the module already names them.

    Args:
        levels: the direct children of each group, the top level first, in topological order;
            changed in place.

    Returns:
        The new groups.
    """
    nodes = graph.nodes
    parts: list[Part] = []
    for number, level in enumerate(levels):
        calls = {nodes[item].call for item in level if type(item) is int}
        if not any("#" in call or "/" in call for call in calls):
            continue
        if number and len(calls - {""}) == 1 and all(type(item) is int for item in level):
            continue  # a module whose nodes are all of one call
        rows = [*zip(_paths(graph, level), level, strict=True)]
        found = _group_by_call(graph, rows, 0, parts, whole=number > 0)
        if len(found) < len(level):
            level[:] = found
    return parts


def _paths(graph: Graph, level: Sequence[Item]) -> list[_Path]:
    """Return the calls around each item; a leaf has those of its first user."""
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


def _group_by_call(
    graph: Graph,
    rows: Sequence[tuple[_Path, Item]],
    depth: int,
    parts: list[Part],
    whole: bool,
) -> list[Item]:
    """Return the items with those of each call at a depth in a group.

    Args:
        whole: the level has a name already, so a call that made all of it gets no group.
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
        single = last and "#" not in name  # consecutive calls that made one node each
        named = single or made < 2 or (whole and len(inside) == len(rows))
        part = Part("call", RangeName(name, f"{name}#", 1, 1), [])
        if not named:
            parts.append(part)  # before the groups inside it
        if not last:
            items = _group_by_call(graph, inside, depth + 1, parts, whole=True)
        part.items = items
        found += items if named else [part]
    return found
