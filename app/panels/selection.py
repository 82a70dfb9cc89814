"""Which node is selected on a page: one number that graph, program, tables and timeline share."""

from __future__ import annotations

import streamlit as st

from graphviz_torch import Graph
from graphviz_torch.graph import Node

_MOST_DIGITS = 9


def follow(graph: Graph, *, key: str, start: int | None = None) -> None:
    """Start with the node that the link names, else with `start`; another graph later starts
    without a selection.

    A graph of the same nodes, such as the one after backward, leaves the selection as it is.
    """
    state = st.session_state
    nodes = [node.name for node in graph.nodes]
    before = state.get(f"{key} followed")
    if before is None:
        named = st.query_params.get("node", "")
        known = named.isascii() and named.isdecimal() and len(named) <= _MOST_DIGITS
        state[f"{key} node"] = int(named) if known else start
    elif before != nodes:
        select(key, None)
    node = selected(key)
    if node is not None and node >= len(graph.nodes):
        select(key, None)
    state[f"{key} followed"] = nodes


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
