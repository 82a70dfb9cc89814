"""Group consecutive operations: chains of views, and the operations of an `autograd.grad` call.

In a chain of views, each view reads only the previous view, and nothing else reads the previous
view. The second kind of group contains the operations that one line with
`autograd.grad(create_graph=True)` created, as in the inner steps of MAML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from ...graph import Edge, Graph
from ...graph.operations import SAME_VALUES
from .part_tree import Item, Part, RangeName

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
