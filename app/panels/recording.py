"""A recording on a page: findings above, the graph, and beside it transfers and gradients."""

from __future__ import annotations

import streamlit as st

from app import words
from app.panels.downloads import draw_downloads
from app.panels.figures import draw_findings, draw_gradients, draw_graph, draw_transfers
from app.panels.selection import follow
from graphviz_torch import Finding, Graph


def show(graph: Graph, findings: list[Finding], *, key: str, ran: bool = True) -> None:
    """Everything there is to see of a graph.

    Args:
        graph: what to show.
        findings: what `find` says of it.
        key: names the selection on this page.
        ran: False while only the forward ran: gradients and copies are still to come.
    """
    follow(graph, key=key)
    if ran:
        draw_findings(findings)
    left, right = st.columns([5, 4], gap="large")
    with left:
        st.subheader("Graph", anchor=False)
        st.caption(words.NODE)
        draw_graph(graph, findings, key=key, color_by="gradient" if ran else "role")
    with right:
        st.subheader("Gradients", anchor=False)
        st.caption(f"{words.GRADIENT} {words.LEAF}")
        if ran:
            draw_gradients(graph, key=key)
        else:
            st.info("None yet: this is what forward left. Run backward.", icon=":material/info:")
        st.subheader("Transfers", anchor=False)
        st.caption(words.TRANSFER)
        draw_transfers(graph, key=key, ran=ran)
    draw_downloads(graph, findings, key=key)
