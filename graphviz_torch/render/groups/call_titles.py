"""Name the calls of a module by their input: "encoder(positive)" is clearer than "encoder#2"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ...graph import Graph
from .groups import Group, Groups


def titles_by_input(graph: Graph, tree: Groups) -> Mapping[int, str]:
    """Return titles such as "encoder(positive)" for the calls of modules called several times.

    The keys of the result are groups. A call gets such a title only if no other call of the module
    has a first input of the same name. An input is data that the caller passed to the model, or the
    result of another node.
    """
    modules = [part for part in tree.groups if part.kind == "module"]
    again = {_module(part) for part in modules if "#" in part.name}
    if not again:
        return {}
    calls = [part for part in modules if part.span[0] < part.span[1] and _module(part) in again]
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
    data: dict[int, tuple[str, str]] = {}  # group of a call -> (module, name of the first input)
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
    """Return the name of the first input that the operations of a module call read.

    Return "" if the input has no name, or if the first operation with an input reads several.

    Args:
        graph: the graph.
        operations: ids of the call's operations, in topological order.
        reads: operation -> the operations whose results it reads.
        detached: operation -> "name.detach()", for operations that read a detached tensor.
    """
    inside: set[int] = set()
    for node in operations:
        outside = set(reads.get(node, ())) - inside
        labels = {graph.nodes[source].label for source in outside}
        labels |= {detached[node]} if node in detached else set()
        given = {saved.label for saved in graph.nodes[node].saved if saved.kind == "input"}
        # If the operation reads a named result, it may have saved the same tensor without a name.
        labels |= given - {""} if labels else given
        if labels:
            return labels.pop() if len(labels) == 1 else ""
        inside.add(node)
    return ""


def _stem(part: Group) -> str:
    return part.name.partition("#")[0]


def _module(part: Group) -> str:
    """Return the path of a group's module, without the call number."""
    return part.path.removesuffix(part.name) + _stem(part)
