"""Draw a table of all nodes, with filters."""

from __future__ import annotations

from typing import Any

import streamlit as st

from graphviz_torch import Graph
from graphviz_torch.graph import Node

from ..linked import MAX_ROWS, has_text, table
from ..selection import name
from ..text import count, duration, size


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
