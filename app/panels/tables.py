"""Draw tables of nodes and modules, and the memory that is saved for backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import streamlit as st

from graphviz_torch import Graph
from graphviz_torch.export import Summary
from graphviz_torch.graph import Node

from . import text
from .charts import quantity, scale
from .linked import MAX_ROWS, has_text, name, table
from .text import count, duration, short, size


def draw_nodes(graph: Graph, *, key: str) -> None:
    """Draw filters by text, operation, module and device, and a table of the matching nodes."""
    with st.container(horizontal=True):
        text = st.text_input("Find", key=f"{key} find", placeholder="name, module, shape, line")
        operations = _choices("Operation", {node.title for node in graph.nodes}, key)
        modules = _choices("Module", {node.module for node in graph.nodes}, key)
        devices = _choices("Device", {node.device for node in graph.nodes}, key)
    found = [
        node
        for node in graph.nodes
        if (not operations or node.title in operations)
        and (
            not modules or any(node.module == m or node.module.startswith(f"{m}.") for m in modules)
        )
        and (not devices or node.device in devices)
        and (not text or text.casefold() in _text(node))
    ]
    st.caption(f"{len(found):,} of {count(len(graph.nodes), 'node')}")
    table(
        node_rows(found[: MAX_ROWS + 1]),
        [node.id for node in found[: MAX_ROWS + 1]],
        key=key,
        place="nodes",
        label="Nodes",
        helps={
            "gradient": "Norm of the first output's gradient",
            "backward": "Time in backward",
            "saved": "Bytes saved for backward",
        },
    )


def node_rows(nodes: list[Node]) -> list[dict[str, Any]]:
    """Return the rows of the table, without columns that are empty for all nodes."""
    rows: list[dict[str, Any]] = [
        {
            "node": name(node),
            "operation": node.leaf or node.title,
            "value": node.value_text,
            "gradient": _gradient(node),
            "output": ", ".join(str(meta) for meta in node.outputs if meta is not None),
            "module": " · ".join(filter(None, (node.module, node.module_class.rpartition("/")[2]))),
            "line": node.where,
            "saved": (size(node.saved_bytes) if node.saved else "", node.saved_bytes),
            "attributes": ", ".join(node.attributes),
            "placement": node.placement,
            "note": node.note,
        }
        for node in nodes
    ]
    if any(node.seconds is not None for node in nodes):
        for row, node in zip(rows, nodes, strict=True):
            row["backward"] = "" if node.seconds is None else duration(node.seconds), node.seconds
    seldom = ("value", "gradient", "attributes", "placement", "note")
    empty = [key for key in seldom if not any(has_text(row[key]) for row in rows)]
    return [{key: cell for key, cell in row.items() if key not in empty} for row in rows]


def _gradient(node: Node) -> tuple[str, float | None]:
    """Return the gradient norm of a node's first output, as text and as a number."""
    stats = next((each for each in node.grad_outputs if each is not None), None)
    return ("", None) if stats is None else (f"{stats.norm:.4g}", stats.norm)


def _choices(label: str, values: set[str], key: str) -> list[str]:
    return st.multiselect(label, sorted(values - {""}), key=f"{key} {label}", placeholder="any")


def _text(node: Node) -> str:
    shapes = " ".join(str(meta) for meta in node.outputs)
    texts = (name(node), node.title, node.name, node.module, node.where, shapes)
    return " ".join(texts).casefold()


_Cell = str | tuple[str, float | None]


def _number(value: float | None, text: Callable[[float], str]) -> tuple[str, float | None]:
    return ("" if value is None else text(value)), value


_Row = dict[str, Any]  # a row of `Summary.rows`
_COLUMNS: dict[str, Callable[[_Row], _Cell]] = {
    "class": lambda row: row["module_class"],
    "calls": lambda row: _number(row["calls"], str),
    "output": lambda row: row["output"] or "",
    "parameters": lambda row: _number(row["parameters"], short),
    "trainable": lambda row: _number(row["trainable"], short),
    "FLOPs": lambda row: _number(row["flops_forward"], short),
    "FLOPs of backward": lambda row: _number(row["flops_backward"], short),
    "saved": lambda row: _number(row["saved_bytes"], size),
    "gradient": lambda row: _number(row["gradient_norm"], "{:.3g}".format),
    "relative": lambda row: _number(row["gradient_ratio"], "{:.2g}".format),
    "backward": lambda row: _number(row["seconds"], duration),
}
_HELPS = {
    "FLOPs": "FLOPs of forward, by PyTorch's formulas, from operations and shapes",
    "saved": "Bytes saved for backward",
    "gradient": "Norm of the gradients of all parameters of the module",
    "relative": "Norm of the gradients, divided by the norm of the parameters",
    "backward": "Time in backward",
}


def draw_modules(found: Summary, *, key: str) -> None:
    """Draw a table with a row for each module in forward order, and the total."""
    rows = module_rows(found)
    table(
        rows, [None] * len(rows), key=key, place="modules", label="Summary by module", helps=_HELPS,
        spare=("class", "calls", "output"),
    )  # fmt: skip
    notes = []
    if found.depth < found.deepest:
        notes.append(f"Modules below depth {found.depth} of {found.deepest} are added up.")
    if found.total.flops_unknown:
        nodes = count(found.total.flops_unknown, "node")
        notes.append(f"The FLOPs of {nodes} are not known, and are not counted.")
    if notes:
        st.caption(" ".join(notes))


def module_rows(found: Summary) -> list[dict[str, Any]]:
    """Return the rows of the table, without columns that are empty for all modules."""
    modules = found.rows()
    columns = {
        title: [cell(row) for row in modules]
        for title, cell in _COLUMNS.items()
        if title != "trainable" or any(row["trainable"] != row["parameters"] for row in modules)
    }
    for field, column in found.recorded_columns.items():
        columns[column.title] = [_cell(row[field], column.text) for row in modules]
    used = {title: cells for title, cells in columns.items() if any(map(has_text, cells))}
    return [
        {"module": _title(row), **{title: cells[place] for title, cells in used.items()}}
        for place, row in enumerate(modules)
    ]


def _cell(value: Any, text: Callable[[Any], str]) -> _Cell:
    return (text(value), value) if isinstance(value, (int, float)) else text(value)


def _title(row: _Row) -> str:
    above, _, last = row["module"].rpartition(".")
    depth = above.count(".") + 1 if above else 0
    return "\N{NO-BREAK SPACE}" * 3 * depth + last or row["module_class"] or "total"


_MAX_BARS = 20
_MAX_TENSORS = 50


def draw_memory(graph: Graph, *, key: str) -> None:
    """Draw the bytes saved for backward. A storage that several nodes save counts once."""
    if not any(node.saved for node in graph.nodes):
        st.info("Tensors saved for backward were not recorded.", icon=":material/info:")
        return
    modules: dict[str, int] = defaultdict(int)
    kinds: dict[str, int] = defaultdict(int)
    for node in graph.nodes:
        modules[node.module or "outside modules"] += node.saved_bytes
        for saved in node.saved:
            kinds[saved.kind] += saved.nbytes
    parts = [f"**{text.size(nbytes)}** of {kind}s" for kind, nbytes in kinds.items() if nbytes]
    st.markdown("Saved for backward: " + ", ".join(parts) + ".", help=text.SAVED)
    largest = sorted(modules.items(), key=lambda pair: -pair[1])
    bars = [
        {"module": module, "bytes": nbytes, "size": text.size(nbytes)}
        for module, nbytes in largest[:_MAX_BARS]
        if nbytes
    ]
    longest = scale([0, *(nbytes for _, nbytes in largest[:1])])
    module = {"field": "module", "type": "nominal"}
    named: dict[str, Any] = {**module, "sort": None, "title": None, "axis": {"labelLimit": 150}}
    st.vega_lite_chart(
        {
            "data": {"values": bars},
            "height": 40 + 20 * len(bars),
            "mark": {"type": "bar", "color": "#3a94d0", "cornerRadiusEnd": 3},
            "encoding": {
                "x": quantity(
                    "bytes",
                    title="bytes saved",
                    axis={"format": "~s", "tickCount": 4},
                    scale=longest,
                ),
                "y": named,
                "tooltip": [module, {"field": "size", "type": "nominal"}],
            },
        },
        alt="Bytes saved for backward by module",
    )
    if len(largest) > _MAX_BARS:
        st.caption(f"The {_MAX_BARS} largest of {len(largest):,} modules.")
    rows = sorted(
        ((saved, node) for node in graph.nodes for saved in node.saved),
        key=lambda pair: -pair[0].nbytes,
    )[:_MAX_TENSORS]
    st.markdown(f"**Largest saved tensors** (at most {_MAX_TENSORS})")
    table(
        [
            {
                "bytes": (text.size(saved.nbytes), saved.nbytes),
                "tensor": str(saved.tensor),
                "as": saved.name,
                "kind": saved.kind,
                "by": name(node),
                "module": node.module,
                "line": node.where,
            }
            for saved, node in rows
        ],
        [node.id for _, node in rows],
        key=key,
        place="saved",
        label="Largest saved tensors",
    )
