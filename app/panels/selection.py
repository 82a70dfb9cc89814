"""The selected node of a page, which the graph, program, tables and timeline share."""

from __future__ import annotations

import streamlit as st

from graphviz_torch import Graph
from graphviz_torch.graph import Node

_MAX_DIGITS = 9  # largest number of digits of a node's id in a link


def follow(graph: Graph, *, key: str, start: int | None = None) -> None:
    """Select the node that the page's URL names, or `start`. For a new graph, clear the selection.

    A graph with the same nodes, such as the graph after backward, keeps the selection.
    """
    state = st.session_state
    nodes = [node.name for node in graph.nodes]
    before = state.get(f"{key} followed")
    if before is None:
        named = st.query_params.get("node", "")
        known = named.isascii() and named.isdecimal() and len(named) <= _MAX_DIGITS
        state[f"{key} node"] = int(named) if known else start
    elif before != nodes:
        select(key, None)
    node = selected_node(key)
    if node is not None and node >= len(graph.nodes):
        select(key, None)
    state[f"{key} followed"] = nodes


def selected_node(key: str) -> int | None:
    """Return the id of the selected node, or None."""
    node: int | None = st.session_state.get(f"{key} node")
    return node


def select(key: str, node: int | None) -> None:
    """Select a node, or no node, and write the selection into the page's link."""
    st.session_state[f"{key} node"] = node
    if node is None:
        st.query_params.pop("node", None)
    else:
        st.query_params["node"] = str(node)


def name(node: Node) -> str:
    """Return a node's label, or its operation and id if the node has no label."""
    return node.label or f"{node.title} #{node.id}"
