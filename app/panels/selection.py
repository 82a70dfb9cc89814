"""Which node is selected on a page: one number that graph, tables and timeline share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from graphviz_torch import Graph, Node


def follow(graph: Graph, *, key: str) -> None:
    """Start with the node that the link names; another graph later starts without a selection."""
    state = st.session_state
    before = state.get(f"{key} followed")
    if before is None:
        named = st.query_params.get("node", "")
        state[f"{key} node"] = int(named) if named.isdecimal() else None
    elif before is not graph:
        select(key, None)
    node = selected(key)
    if node is not None and node >= len(graph.nodes):
        select(key, None)
    state[f"{key} followed"] = graph


def selected(key: str) -> int | None:
    """Id of the node that is selected at `key`."""
    node: int | None = st.session_state.get(f"{key} node")
    return node


def select(key: str, node: int | None) -> None:
    """Select a node, or none; the link to the page says which."""
    st.session_state[f"{key} node"] = node
    if node is None:
        st.query_params.pop("node", None)
    else:
        st.query_params["node"] = str(node)


def name(node: Node) -> str:
    """What a reader calls a node: its label, else its operation and number."""
    return node.label or f"{node.title} #{node.id}"


def table(
    rows: Sequence[dict[str, object]],
    nodes: Sequence[int | None],
    *,
    key: str,
    place: str,
    label: str,
    columns: Mapping[str, Any] | None = None,
) -> None:
    """A table whose rows stand for nodes: choosing a row selects its node, and the other way.

    Args:
        rows: one dict for each row, with the same columns.
        nodes: the node of each row, or None.
        key: whose selection it is.
        place: a name for this table on the page.
        label: what a screen reader calls the table.
        columns: how `st.dataframe` shows columns.
    """
    widget = f"{key} {place}"

    def chosen() -> None:
        picked = st.session_state[widget]["selection"]["rows"]
        select(key, nodes[picked[0]] if picked else None)

    node = selected(key)
    shown = st.session_state.get(widget, {"selection": {"rows": []}})["selection"]["rows"]
    # A row that stands for the node already is left: several rows may share a node.
    if not any(row < len(nodes) and nodes[row] == node for row in shown):
        found = [nodes.index(node)] if node is not None and node in nodes else []
        if found != list(shown):
            st.session_state[widget] = {"selection": {"rows": found, "columns": [], "cells": []}}
    st.dataframe(
        rows,
        key=widget,
        on_select=chosen,
        selection_mode="single-row",
        hide_index=True,
        alt=label,
        placeholder="",
        column_config=columns,
    )
