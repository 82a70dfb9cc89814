"""Name the calls of a module by their input: "encoder(positive)" is clearer than "encoder#2"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ...graph import Graph
from .groups import Group, Groups


def titles_by_input(graph: Graph, tree: Groups) -> Mapping[int, str]:
    """Return group -> title such as "encoder(positive)", for modules that were called several
    times.

    A call gets a title only if its first input has a name that no other call's first input has. An
    input is data that the caller passed to the model, or the result of a node.
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
    data: dict[int, tuple[str, str]] = {}  # call -> (module, name of the call's first input)
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
    """Return the name of the call's first input from outside; "" if it has no name, or several."""
    inside: set[int] = set()
    for node in operations:
        outside = set(reads.get(node, ())) - inside
        labels = {graph.nodes[source].label for source in outside}
        labels |= {detached[node]} if node in detached else set()
        given = {saved.label for saved in graph.nodes[node].saved if saved.kind == "input"}
        labels |= (
            given - {""} if labels else given
        )  # a named result that the module reads is also saved as an input
        if labels:
            return labels.pop() if len(labels) == 1 else ""
        inside.add(node)
    return ""


def _stem(part: Group) -> str:
    return part.name.partition("#")[0]


def _module(part: Group) -> str:
    """Return the path of a group's module, without the call number."""
    return part.path.removesuffix(part.name) + _stem(part)
