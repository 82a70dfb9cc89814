"""Compare two recordings: in numbers, in the interactive view, and as text."""

from __future__ import annotations

import streamlit as st

from graphviz_torch import Graph

from ..jobs.values import GraphComparison
from . import text
from .figures import draw_graph


def draw_differences(compared: GraphComparison, *, key: str, height: int) -> None:
    """Draw both graphs as one, and list the nodes that were added, removed or changed."""
    if not compared.text:
        st.success("The two recordings do not differ.", icon=":material/check:")
        return
    draw_graph(compared.payload, key=key, place="differences", height=height)
    counts = {"added": compared.added, "removed": compared.removed, "changed": compared.changed}
    message = ", ".join(f"{text.count(number, 'node')} {name}" for name, number in counts.items())
    with st.expander(f"In the second: {message}", icon=":material/difference:", expanded=True):
        st.code(compared.text, language=None, height=400)


def draw_numbers(graphs: list[tuple[str, Graph]]) -> None:
    """Draw a table: for each graph, the numbers of nodes, parameters, copies and so on."""
    for title, graph in graphs:
        message = (f"{name} {text.escape(value)}" for name, value in _numbers(graph).items())
        st.caption(f"**{text.escape(title)}**: {' · '.join(message)}")


def _numbers(graph: Graph) -> dict[str, str]:
    measured = [node.seconds for node in graph.nodes if node.seconds is not None]
    known = any(node.saved for node in graph.nodes)
    activations = sum(
        saved.nbytes for n in graph.nodes for saved in n.saved if saved.kind == "activation"
    )
    return {
        "nodes": f"{len(graph.nodes):,}",
        "edges": f"{len(graph.edges):,}",
        "parameters": f"{sum(node.leaf == 'parameter' for node in graph.nodes):,}",
        "saved activations": text.size(activations) if known else "not recorded",
        "copies": f"{len(graph.transfers):,}",
        "collectives": f"{len(graph.collectives):,}",
        "backward": text.duration(sum(measured)) if measured else "not measured",
    }
