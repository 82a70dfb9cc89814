"""Group the nodes that one function call created.

A call of a torch function, such as "cross_entropy", gets a group. A call of one of the program's
own functions gets a group only outside of modules. `Node.call` contains the names of the calls that
created a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from ...graph import Graph
from .part_tree import Item, Part, RangeName

_Path = tuple[str, ...]  # the names of the calls that contain a node, outermost first


def gather_calls(graph: Graph, levels: Sequence[list[Item]]) -> list[Part]:
    """Put the nodes that each function call created into a group, unless it created only one.

    A call inside another call becomes a nested group. A call that created all nodes of a module
    gets no group, because the module's name describes these nodes.

    Args:
        graph: the graph.
        levels: one list of direct children for each group, in topological order. The first list is
            the top level. The lists are changed in place.

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
            continue  # one call created all nodes of the module
        rows = [*zip(_paths(graph, level), level, strict=True)]
        found = _group_by_call(graph, rows, 0, parts, whole=number > 0)
        if len(found) < len(level):
            level[:] = found
    return parts


def _paths(graph: Graph, level: Sequence[Item]) -> list[_Path]:
    """Return the calls that contain each item of a level. A leaf is in the calls of its first user.

    Args:
        graph: the graph.
        level: groups and nodes, in topological order.
    """
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
    """Group the items of a level by the call at `depth`, and return the items and new groups.

    Args:
        graph: the graph.
        rows: (calls that contain the item, item) for each item of the level, in order.
        depth: number of outer calls that are grouped already.
        parts: list to which new groups are appended.
        whole: True if the level is the inside of a named group. If one call created all items of
            the level, this call then gets no group of its own.
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
        single = last and "#" not in name  # consecutive calls, each of which created one node
        named = single or made < 2 or (whole and len(inside) == len(rows))
        part = Part("call", RangeName(name, f"{name}#", 1, 1), [])
        if not named:
            parts.append(part)  # outer groups precede inner groups
        if not last:
            items = _group_by_call(graph, inside, depth + 1, parts, whole=True)
        part.items = items
        found += items if named else [part]
    return found
