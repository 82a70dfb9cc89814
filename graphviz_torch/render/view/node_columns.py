"""The columns of the nodes in a view, and the tables and bytes that store columns compactly.

The view has nodes also for data, and for calls without an autograd node.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from operator import attrgetter
from typing import Any

from ...graph import Edge, GradientStats, Graph, Node, TensorMeta, Transfer
from ...graph.tensors import elements_text
from ..data_boxes import copies_by_data
from ..groups.groups import Groups


class Table:
    """A table of distinct rows, in the order of their first appearance."""

    def __init__(self) -> None:
        self._at: dict[Hashable, int] = {}

    def position(self, row: Hashable) -> int:
        """Return the position of a row, which is added if the table does not contain it."""
        return self._at.setdefault(row, len(self._at))

    def positions(self, rows: Sequence[Hashable]) -> list[int]:
        """Return the position of each row. New rows are added to the table."""
        for row in dict.fromkeys(rows):
            self.position(row)
        return list(map(self._at.__getitem__, rows))

    @property
    def rows(self) -> list[Any]:
        """The distinct rows, in the order of their positions."""
        return list(self._at)


class Columns:
    """Columns of numbers, stored as byte planes.

    A plane contains one byte of every row's number. A column of zeros is left out.
    """

    def __init__(self) -> None:
        # (name, kind, bytes per row, number of rows) of each column
        self.layout: list[tuple[str, str, int, int]] = []
        self.planes: list[bytes] = []

    def numbers(self, name: str, values: Sequence[int]) -> None:
        """Add a column of non-negative integers."""
        top = max(values, default=0)
        if top:
            self._add(name, "number", values, top)

    def steps(self, name: str, values: Sequence[int]) -> None:
        """Add a column of integers, stored as the differences between consecutive rows."""
        steps = [b - a for a, b in zip((0, *values), values, strict=False)]
        self._add_signed(name, "step", steps)

    def signed_numbers(self, name: str, values: Sequence[int]) -> None:
        """Add a column of signed integers."""
        self._add_signed(name, "signed", values)

    def floats(self, name: str, values: Iterable[float | None], fraction: int) -> None:
        """Add a column of floats, rounded to `fraction` mantissa bits; None becomes NaN."""
        numbers = [math.nan if value is None else value for value in values]
        if all(map(math.isnan, numbers)):
            return
        bits = struct.unpack(f"<{len(numbers)}Q", struct.pack(f"<{len(numbers)}d", *numbers))
        half, mask = 1 << (51 - fraction), (1 << 64) - (1 << (52 - fraction))
        rounded = [(bit + half) & mask for bit in bits]
        self._add(name, "measured", rounded, (1 << 64) - 1)

    def texts(self, name: str, values: Sequence[Hashable]) -> list[Any]:
        """Add a column for values that repeat, and return the list of distinct values.

        The column contains the position of each row's value in this list.
        """
        table = Table()
        table.position("")
        self.numbers(name, table.positions(values))
        return table.rows

    def _add_signed(self, name: str, kind: str, values: Sequence[int]) -> None:
        folded = [2 * value if value >= 0 else -2 * value - 1 for value in values]
        top = max(folded, default=0)
        if top:
            self._add(name, kind, folded, top)

    def _add(self, name: str, kind: str, values: Sequence[int], top: int) -> None:
        size = (top.bit_length() + 7) // 8
        self.layout.append((name, kind, size, len(values)))
        if size == 1:
            self.planes.append(bytes(values))
            return
        data = struct.pack(f"<{len(values)}Q", *values)
        self.planes += [data[plane::8] for plane in range(size)]


DATA, UNTRACKED = "data", "untracked"  # values of `Node.leaf` for data and for untracked calls
_FINE, COARSE, _TIME = 20, 13, 9  # mantissa bits of measured numbers
# maximum number of elements of a gradient that are included: in a small graph, in a large graph
_MAX_VALUES, _MAX_VALUES_LARGE = 64, 4
_LEAVES = ("", "parameter", "buffer", "tensor", DATA, UNTRACKED)
_MAX_NODES_ALL_VALUES = 50  # in a larger graph, only elements of small gradients are included
_MAX_NODES_FINE = 500  # in a larger graph, numbers have COARSE instead of _FINE mantissa bits
_MEASURED = {"norm": "norm", "maxAbs": "max_abs", "mean": "mean", "zeros": "zero_fraction"}
# The statistics of a gradient without statistics.
_UNKNOWN = GradientStats(math.nan, math.nan, math.nan, math.nan)
TEXTS = ("name", "operation", "module", "where", "note")


def finite(number: float | None) -> float | None:
    """Return a number, or None if it is not finite, because JSON has no infinity."""
    return number if number is not None and math.isfinite(number) else None


def add_nodes(graph: Graph, columns: Columns, header: dict[str, Any], metas: Table) -> None:
    """Add the columns of nodes and edges, and the saved tensors, to a payload."""
    nodes = graph.nodes
    columns.numbers("leaf", [_LEAVES.index(node.leaf) for node in nodes])
    header["ordered"] = any(node.order is not None for node in nodes)
    columns.steps("order", [-1 if node.order is None else node.order for node in nodes])
    columns.floats("seconds", [node.seconds for node in nodes], _TIME)

    shapes, keeps = Table(), Table()
    shapes.position(())
    keeps.position(())
    outputs = [node.outputs for node in nodes]
    # Most nodes share their tuple of outputs with others, so each tuple is read once.
    distinct = dict(zip(map(id, outputs), outputs, strict=True))
    known = {key: _metas(each, metas) for key, each in distinct.items()}
    columns.numbers("shapes", shapes.positions([known[id(each)] for each in outputs]))
    saved = [_saved_rows(node, metas) if node.saved else () for node in nodes]
    columns.numbers("saved", keeps.positions(saved))
    header["shapes"], header["saved"] = shapes.rows, keeps.rows

    inputs = graph.inputs()
    columns.numbers("inputs", [len(edges) for edges in inputs])
    entries = [(edge, at) for edges in inputs for at, edge in enumerate(edges)]
    distances = [edge.target - edge.source for edge, _ in entries]
    write = columns.signed_numbers if min(distances, default=0) < 0 else columns.numbers
    write("edgeSource", distances)
    columns.numbers("edgeOutput", [edge.output_nr for edge, _ in entries])
    columns.signed_numbers("edgeInput", [edge.input_nr - at for edge, at in entries])

    states = [0] * len(nodes)
    for parameter in graph.parameters:
        if parameter.node is not None:
            flags = (parameter.module_called, parameter.has_grad, parameter.stepped)
            state = sum((0 if flag is None else 1 + flag) << 2 * i for i, flag in enumerate(flags))
            states[parameter.node] = state
    columns.numbers("parameter", states)


def label(node: Node) -> str | tuple[str]:
    """Return a node's label.

    If the label begins with the path of the node's module, return only the rest, in a tuple.
    """
    label, before = node.label, f"{node.module}."
    return (label[len(before) :],) if label.startswith(before) else label


def _metas(outputs: Iterable[TensorMeta | None], metas: Table) -> tuple[int, ...]:
    return tuple([-1 if meta is None else metas.position(meta) for meta in outputs])


def _saved_rows(node: Node, metas: Table) -> tuple[tuple[Any, ...], ...]:
    # If the storage is counted at another node, the distance to this node is stored. Distances are
    # equal in identical blocks, whose rows are therefore stored once.
    return tuple(
        [
            (
                saved.name,
                metas.position(saved.tensor),
                saved.nbytes,
                saved.kind,
                None if saved.shared_with is None else node.id - saved.shared_with,
            )
            for saved in node.saved
        ]
    )


def add_gradients(
    graph: Graph,
    columns: Columns,
    header: dict[str, Any],
    metas: Table,
) -> None:
    """Add the statistics and elements of each gradient to a payload."""
    nodes, outputs = graph.nodes, {node for node, _ in graph.outputs}
    columns.numbers("gradients", [len(node.grad_outputs) for node in nodes])
    rows = [_UNKNOWN if stats is None else stats for node in nodes for stats in node.grad_outputs]
    fraction = _FINE if len(nodes) <= _MAX_NODES_FINE else COARSE
    for name, field in _MEASURED.items():
        columns.floats(name, list(map(attrgetter(field), rows)), fraction)
    columns.numbers("nan", list(map(attrgetter("nan"), rows)))
    columns.numbers("inf", list(map(attrgetter("inf"), rows)))
    tensors = [stats.tensor for stats in rows]
    columns.numbers("gradTensor", [0 if t is None else metas.position(t) + 1 for t in tensors])
    most = _MAX_VALUES if len(nodes) <= _MAX_NODES_ALL_VALUES else _MAX_VALUES_LARGE
    header["values"] = {
        at: _values(stats.values)
        for at, stats in enumerate(rows)
        if stats.values and len(stats.values) <= most
    }
    header["results"] = {
        node.id: [values if values is None else _values(values) for values in node.values]
        for node in nodes
        if node.values and (len(nodes) <= _MAX_NODES_FINE or node.id in outputs)
    }
    header["extents"] = {at: one.extent for at, one in enumerate(rows) if one.extent}


def _values(values: Iterable[Any]) -> list[float | str]:
    return [
        float(f"{value:.6g}")
        if isinstance(value, float) and isfinite(value)
        else elements_text((value,))
        for value in values
    ]


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
