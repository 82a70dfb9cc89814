"""Two recordings side by side: in numbers, in a drawing, node by node."""

from __future__ import annotations

import streamlit as st

from app import words
from graphviz_torch import Graph, GraphDiff, draw_graph


def draw_differences(difference: GraphDiff) -> None:
    """What the second graph has more, has less, and has otherwise."""
    changed = {change.b for change in difference.changed}
    for column, (label, count) in zip(
        st.columns(3),
        [
            ("Added", len(difference.added)),
            ("Removed", len(difference.removed)),
            ("Changed", len(changed)),
        ],
        strict=True,
    ):
        column.metric(label, words.count(count, "node"), border=True)
    if not difference:
        st.success("The two recordings do not differ.", icon=":material/check:")
        return
    marks = difference.marks()
    drawn = draw_graph(difference.union(), marks=marks, theme="auto").pipe("svg", encoding="utf-8")
    st.image(str(drawn), width="content")
    st.code(difference.to_text(limit=500), language="diff")


def draw_numbers(graphs: list[tuple[str, Graph]]) -> None:
    """A row for each graph: how many of what."""
    st.table([{"recording": title} | _numbers(graph) for title, graph in graphs])


def _numbers(graph: Graph) -> dict[str, str]:
    measured = [node.seconds for node in graph.nodes if node.seconds is not None]
    kept = any(node.saved for node in graph.nodes)
    return {
        "nodes": f"{len(graph.nodes):,}",
        "edges": f"{len(graph.edges):,}",
        "parameters": f"{sum(node.leaf == 'parameter' for node in graph.nodes):,}",
        "kept": words.size(sum(n.saved_bytes for n in graph.nodes)) if kept else "not recorded",
        "transfers": f"{len(graph.transfers):,}",
        "backward": words.duration(sum(measured)) if measured else "not measured",
    }
