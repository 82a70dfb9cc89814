"""Chains of operations that only reshape: one box tells the views between two computations.

Each reads the one before it alone, and nothing else reads that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ...graph import Edge, Graph
from .cutting import Item, Name, Part

# Forwards that hand on all elements of their one input, and nothing else.
RESHAPING: Final = frozenset(
    (
        *("alias", "clone", "expand", "permute", "reshape_alias", "squeeze", "t", "to_copy"),
        *("transpose", "unsafe_view", "unsqueeze", "view"),
    )
)


def gather(graph: Graph, edges: Sequence[Edge], levels: Sequence[list[Item]]) -> list[Part]:
    """Put each chain in a group, at the place of its last operation.

    Args:
        levels: what is directly in each group, in topological order; they are changed.

    Returns:
        The groups.
    """
    before = _before(graph, edges)
    parts: list[Part] = []
    for level in levels if before else ():
        chains: dict[int, list[int]] = {}  # by the last operation
        for item in level:
            if type(item) is int and graph.nodes[item].operation in RESHAPING:
                chains[item] = [*chains.pop(before.get(item, -1), ()), item]
        ends = {i: chain for i, chain in chains.items() if len(chain) > 1}
        if ends:
            gone = {i for chain in ends.values() for i in chain[:-1]}
            made = {i: _part(graph, chain) for i, chain in ends.items()}
            left = [item for item in level if type(item) is Part or item not in gone]
            level[:] = [made.get(item, item) if type(item) is int else item for item in left]
            parts += made.values()
    return parts


def _before(graph: Graph, edges: Sequence[Edge]) -> dict[int, int]:
    """By operation that reshapes what another made for it alone: that one, if it reshapes too."""
    nodes = graph.nodes
    shaping = {node.id for node in nodes if node.operation in RESHAPING}
    if not shaping:
        return {}
    fed = Counter([edge.target for edge in edges])
    uses = Counter([edge.source for edge in edges])
    ends = {node for node, _ in graph.outputs}
    return {
        edge.target: edge.source
        for edge in edges
        if edge.source in shaping
        and edge.target in shaping
        and fed[edge.target] == uses[edge.source] == 1
        and not (edge.source in ends or nodes[edge.source].label or nodes[edge.source].note)
    }


def _part(graph: Graph, chain: list[int]) -> Part:
    text = ", ".join([graph.nodes[i].title for i in chain])
    return Part("chain", Name(text, f"{text}#", 1, 1), [*chain])
