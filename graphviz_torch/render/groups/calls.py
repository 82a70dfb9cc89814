"""What the calls of one module are called on: "encoder(positive)" tells more than "encoder#2"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ...graph import Graph
from .groups import Group, Groups


def called_on(graph: Graph, tree: Groups) -> Mapping[int, str]:
    """The name of each group that is one of several calls, by the data that goes in.

    Only where the first thing that the call reads has a name, and no other call of the module
    begins with the same: data that the caller gave the model, or the result of a node.
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
    detached = {
        node: f"{cut.label}.detach()"
        for cut in graph.cuts
        if cut.how == "detach" and cut.label
        for node in cut.after
    }
    data: dict[int, tuple[str, str]] = {}  # of each call: its module, and what it is called on
    for part in calls:
        on = _read_first(graph, tree.operations[slice(*part.span)], reads, detached)
        if on:
            data[part.id] = _module(part), on
    times = Counter(data.values())
    return {
        number: f"{_stem(tree.groups[number])}({on})"
        for number, (module, on) in data.items()
        if times[module, on] == 1
    }


def _read_first(
    graph: Graph,
    operations: Iterable[int],
    reads: Mapping[int, list[int]],
    detached: Mapping[int, str],
) -> str:
    """The name of what the first operation reads that reads anything from outside of the call."""
    inside: set[int] = set()
    for node in operations:
        outside = set(reads.get(node, ())) - inside
        labels = {graph.nodes[source].label for source in outside}
        labels |= {detached[node]} if node in detached else set()
        given = {saved.label for saved in graph.nodes[node].saved if saved.kind == "input"}
        labels |= given - {""} if labels else given  # a result that a module reads is an input, too
        if labels:
            return labels.pop() if len(labels) == 1 else ""
        inside.add(node)
    return ""


def _stem(part: Group) -> str:
    return part.name.partition("#")[0]


def _module(part: Group) -> str:
    """The path of the module, without the number of its call."""
    return part.path.removesuffix(part.name) + _stem(part)
