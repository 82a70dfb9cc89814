"""Collectives as every format tells them: alike ones once, by node and by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ..graph import Collective, Graph, GraphLike, graph_of
from ..graph.text import listing
from . import labels


def collectives(graph: GraphLike) -> list[Collective]:
    """What this rank gave to other ranks and took from them, in order, with line and module.

    A recording has them; a trace has none, for it runs nothing.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> collectives(trace(torch.ones(3, requires_grad=True).sum()))
    []
    """
    return list(graph_of(graph).collectives)


def alike(sent: Iterable[Collective]) -> list[tuple[Collective, int]]:
    """Collectives that differ in their node alone, once, with how many there are.

    >>> one = Collective("all_reduce", 8, "float32", 2)
    >>> [(each.kind, times) for each, times in alike([one, replace(one, node=3)])]
    [('all_reduce', 2)]
    """
    return list(Counter(replace(each, node=None) for each in sent).items())


def by_node(graph: Graph) -> dict[int, list[Collective]]:
    """The collectives of each node that has some."""
    found: dict[int, list[Collective]] = {}
    for each in graph.collectives:
        if each.node is not None:
            found.setdefault(each.node, []).append(each)
    return found


def lines(sent: Iterable[Collective]) -> list[str]:
    """What a box says of its collectives; a line for those alike ends with how many there are."""
    bare = [
        replace(each, node=None, where="", module="", parameters=(), waited="", phase="other")
        for each in sent
    ]
    return [f"{each}{f' {labels.TIMES}{n}' if n > 1 else ''}" for each, n in alike(bare)]


def whose(each: Collective) -> str:
    """What of the program goes over: parameters, or a change of placements."""
    return each.change or listing(each.parameters, 2)
