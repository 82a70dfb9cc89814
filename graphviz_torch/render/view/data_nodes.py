"""Add nodes for data, and for calls without an autograd node, to the graph that the view shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...graph import Edge, Graph, Node, Transfer
from ..data_boxes import copies_by_data
from ..groups.groups import Groups

DATA, UNTRACKED = "data", "untracked"  # values of `Node.leaf` for data and for untracked calls
_MAX_ITEMS = 200


def with_untracked(graph: Graph, hosts: Sequence[int]) -> tuple[Graph, dict[int, float]]:
    """Return the graph with a node for each entry of `Graph.untracked` that feeds a node.

    Args:
        graph: the graph.
        hosts: node id -> the node whose box shows it. The edges of new nodes lead to that node.

    Returns:
        (graph with the new nodes at the end, id of a new node -> position among the ids, just
        before the first user of the node).
    """
    rows = graph.untracked
    if not rows or graph.failure is not None:
        return graph, {}
    places: list[float | None] = [None] * len(rows)
    for i, row in reversed([*enumerate(rows)]):
        known = [float(node) for node in row.targets]
        known += [place for place in (places[i],) if place is not None]
        places[i] = min(known, default=None)
        for j in row.inputs if places[i] is not None else ():
            before = (places[i] or 0.0) - 0.5 / len(rows)
            places[j] = before if places[j] is None else min(places[j] or 0.0, before)
    shown = [i for i, place in enumerate(places) if place is not None][:_MAX_ITEMS]
    ids = {i: len(graph.nodes) + at for at, i in enumerate(shown)}
    counts = [0] * (len(graph.nodes) + len(shown))  # node -> number of inputs
    for edge in graph.edges:
        counts[edge.target] = max(counts[edge.target], edge.input_nr + 1)
    nodes, edges = [*graph.nodes], [*graph.edges]
    classes = _classes(graph)
    lone = _modules_with_only_leaves(graph)

    def connect(source: int, target: int) -> None:
        edges.append(Edge(source, target, 0, counts[target]))
        counts[target] += 1

    for i, item in ids.items():
        row, leaf = rows[i], DATA if rows[i].kind == "data" else UNTRACKED
        kind: Any = leaf
        is_module = row.kind == "module"
        module = row.module
        if is_module and row.label not in lone:
            module = _parent_path(row.label)
        named = replace(row, label=row.label.rpartition(".")[2]) if is_module else row
        nodes.append(
            Node(
                item,
                leaf,
                row.tensors,
                named.title,
                leaf=kind,
                module=module,
                module_class=classes.get(module, ""),
                where=row.where,
                note=row.reason,
                values=(row.values,) if row.values is not None else (),
            )
        )
        for j in row.inputs:
            if j in ids:
                connect(ids[j], item)
        for node in row.sources:
            connect(node, item)
        for node in row.targets:
            connect(item, hosts[node])
    order = {ids[i]: (places[i] or 0.0) - 0.5 for i in shown}
    transfers = _with_items(graph, ids)
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges), transfers=transfers), order


def _with_items(graph: Graph, ids: Mapping[int, int]) -> tuple[Transfer, ...]:
    """Return the transfers of a graph, after assigning copies of data to the data's new nodes.

    Args:
        graph: the graph.
        ids: position in `Graph.untracked` -> new node.
    """
    copies = copies_by_data(graph)
    found = {
        id(copy): item
        for i, item in ids.items()
        for number in graph.untracked[i].copies
        for copy in copies.get(number, ())
    }
    return tuple(
        replace(each, node=found[id(each)]) if id(each) in found else each
        for each in graph.transfers
    )


def groups_around(groups: Groups, items: tuple[Node, ...]) -> list[int | None]:
    """Return, for each item, the innermost module group that contains it; None if none does."""
    known = {group.path: group.id for group in groups.groups if group.kind == "module"}
    found = []
    for item in items:
        path = item.module
        while path and path not in known:
            path = _parent_path(path)
        found.append(known.get(path) if path else None)
    return found


def _modules_with_only_leaves(graph: Graph) -> set[str]:
    """Return the paths of modules with parameters, but without an operation, in the graph."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for node in graph.nodes:
        path = node.module
        while path:
            found[bool(node.leaf)].add(path)
            path = _parent_path(path)
    return found[True] - found[False]


def _classes(graph: Graph) -> dict[str, str]:
    """Return module path -> the classes of the modules on the path, as in `Node.module_class`."""
    found: dict[str, str] = {}
    for path, kinds in dict.fromkeys((node.module, node.module_class) for node in graph.nodes):
        while path and path not in found:
            found[path] = kinds
            path, kinds = _parent_path(path), kinds.rpartition("/")[0]
    return found


def _parent_path(path: str) -> str:
    return path.rpartition(".")[0]
