"""What the calls of one module are called on: "encoder(positive)" tells more than "encoder#2"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ...graph import Graph
from .groups import Group, Groups


def called_on(graph: Graph, tree: Groups) -> Mapping[int, str]:
    """The name of each group that is one of several calls, by the data that goes in.

    Only where the first thing that the call reads is data with a name, which the caller gave the
    model, and no other call of the module begins with the same.
    """
    again = {_module(part) for part in tree.groups if "#" in part.name}
    if not again:
        return {}
    calls = [
        part
        for part in tree.groups
        if part.kind == "module" and part.span[0] < part.span[1] and _module(part) in again
    ]
    reads: dict[int, list[int]] = {}
    for edge in graph.edges:
        if not graph.nodes[edge.source].leaf:
            reads.setdefault(edge.target, []).append(edge.source)
    data: dict[int, tuple[str, str]] = {}  # of each call: its module, and what it is called on
    for part in calls:
        on = _data(graph, tree.operations[slice(*part.span)], reads)
        if on:
            data[part.id] = _module(part), on
    times = Counter(data.values())
    return {
        number: f"{_stem(tree.groups[number])}({on})"
        for number, (module, on) in data.items()
        if times[module, on] == 1
    }


def _data(graph: Graph, operations: Iterable[int], reads: Mapping[int, list[int]]) -> str:
    """What the first operation that reads data calls it, if a call reads nothing else before."""
    inside: set[int] = set()
    for node in operations:
        if not inside.issuperset(reads.get(node, ())):
            return ""
        inside.add(node)
        labels = {saved.label for saved in graph.nodes[node].saved if saved.kind == "input"}
        if labels:
            return labels.pop() if len(labels) == 1 else ""
    return ""


def _stem(part: Group) -> str:
    return part.name.partition("#")[0]


def _module(part: Group) -> str:
    """The path of the module, without the number of its call."""
    return part.path.removesuffix(part.name) + _stem(part)
