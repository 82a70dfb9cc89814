"""Define `Part`, a group that is still being built, and group the nodes of calls and chains.

The items of a part are nodes and other parts.

A call of a torch function, such as "cross_entropy", gets a group. A call of one of the program's
own functions gets a group only outside of modules. `Node.call` contains the names of the calls that
created a node.

In a chain of views, each view reads only the previous view, and nothing else reads the previous
view. Another kind of group contains the operations that one line with
`autograd.grad(create_graph=True)` created, as in the inner steps of MAML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal

from ...graph import Edge, Graph
from ...graph.immutable import NamedTuple
from ...graph.nodes import SAME_VALUES

# Kinds of groups:
# - "graph": one backward pass of a joined graph
# - "module": one call of a module
# - "call": one call of a function of torch or of the program
# - "run": consecutive nodes and groups, such as a step of a loop
# - "chain": consecutive views or equal operations, which the group's name lists
# - "stack": consecutive identical groups
Kind = Literal["graph", "module", "call", "run", "chain", "stack"]


class Part:
    """A group that is being built; its items are other parts and node ids."""

    __slots__ = ("items", "kind", "module_class", "name", "nodes", "parts", "span", "structure")

    def __init__(
        self, kind: Kind, name: RangeName, items: list[Item], module_class: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.items = items
        self.module_class = module_class
        # `Structure.close` sets the following attributes.
        self.parts: list[Part] = []
        self.nodes: list[int] = []  # sorted by id
        self.span = (0, 0)  # range (start, end) of the positions of all operations inside
        self.structure = 0  # id of the part's structure, equal for isomorphic parts


class RangeName(NamedTuple):
    """A numbered name. "repeat 1" and "repeat 9" can be joined into "repeat 1-9"."""

    text: str
    stem: str
    first: int
    last: int


Item = Part | int


def split(items: list[Item]) -> tuple[list[Part], list[int]]:
    """Return (the parts among the items, in order; the nodes among them, sorted by id)."""
    parts = [item for item in items if type(item) is Part]
    return parts, sorted([item for item in items if type(item) is int])


def flatten(items: Sequence[Item]) -> list[int]:
    """Return the ids of all nodes in `items`, nested parts included, in order."""
    nodes: list[int] = []
    stack = [iter(items)]
    while stack:
        for item in stack[-1]:
            if isinstance(item, Part):
                stack.append(iter(item.items))
                break
            nodes.append(item)
        else:
            stack.pop()
    return nodes


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


# Operations with one input, whose output contains exactly the elements of the input.
RESHAPING: Final = SAME_VALUES | {"expand"}
_BACKWARD = "_backward"  # suffix of the names of operations that run only in a backward pass
GRADIENT: Final = "autograd.grad"


def gather_views(graph: Graph, edges: Sequence[Edge], levels: Sequence[list[Item]]) -> list[Part]:
    """Put each chain of views into a group, which takes the position of the chain's last view.

    Args:
        graph: the graph.
        edges: the edges of the graph.
        levels: the direct children of each group, in topological order. The lists are changed in
            place.

    Returns:
        The new groups.
    """
    before = _previous_views(graph, edges)
    linked = {*before, *before.values()}
    parts: list[Part] = []
    for level in levels if before else ():
        chains: dict[int, list[int]] = {}  # last view of a chain -> all views of the chain
        for item in level:
            if type(item) is int and item in linked:
                chains[item] = [*chains.pop(before.get(item, -1), ()), item]
        ends = {i: chain for i, chain in chains.items() if len(chain) > 1}
        if ends:
            gone = {i for chain in ends.values() for i in chain[:-1]}
            made = {i: _part(graph, chain) for i, chain in ends.items()}
            left = [item for item in level if type(item) is Part or item not in gone]
            level[:] = [made.get(item, item) if type(item) is int else item for item in left]
            parts += made.values()
    return parts


def gather_gradients(graph: Graph, levels: Sequence[list[Item]]) -> list[Part]:
    """Put the operations that each `autograd.grad(create_graph=True)` created into a group.

    Args:
        graph: the graph.
        levels: the direct children of each group, in execution order. The lists are changed in
            place.

    Returns:
        The new groups.
    """
    nodes = graph.nodes
    own = {name for name in {node.operation for node in nodes} if name.endswith(_BACKWARD)}
    lines = {node.where for node in nodes if node.operation in own} - {""} if own else ()
    parts: list[Part] = []
    for level in levels if lines else ():
        found: list[Item] = []
        start = 0
        for line, run in groupby(_lines(graph, level)):
            items = level[start : start + len([*run])]
            start += len(items)
            inside = [nodes[i] for i in items if type(i) is int and not nodes[i].leaf]
            if line in lines and any(node.operation in own for node in inside):
                text = f"{GRADIENT}, {len(inside)} operations"
                parts.append(Part("chain", RangeName(text, f"{text}#", 1, 1), items))
                items = [parts[-1]]
            found += items
        level[:] = found
    return parts


def _lines(graph: Graph, level: Sequence[Item]) -> list[str]:
    """Return the source line of each item of a level; a leaf gets the line of its first user."""
    found: list[str] = []
    line = ""
    for item in reversed(level):
        if isinstance(item, Part):
            line = ""
        elif not graph.nodes[item].leaf:
            line = graph.nodes[item].where
        found.append(line)
    return found[::-1]


def _previous_views(graph: Graph, edges: Sequence[Edge]) -> dict[int, int]:
    """Return view -> the previous view in its chain.

    The previous view has no name, is the only input of the view, and has no other user.
    """
    nodes = graph.nodes
    shaping = {node.id for node in nodes if node.operation in RESHAPING}
    into = [edge for edge in edges if edge.target in shaping]
    rows = [edge for edge in into if edge.source in shaping]
    if not rows:
        return {}
    fed = Counter([edge.target for edge in into])
    uses = Counter([edge.source for edge in edges if edge.source in shaping])
    ends = {node for node, _ in graph.outputs}
    return {
        edge.target: edge.source
        for edge in rows
        if fed[edge.target] == uses[edge.source] == 1
        and not (edge.source in ends or nodes[edge.source].label or nodes[edge.source].note)
    }


def _part(graph: Graph, chain: list[int]) -> Part:
    text = ", ".join([graph.nodes[i].title for i in chain])
    return Part("chain", RangeName(text, f"{text}#", 1, 1), [*chain])
