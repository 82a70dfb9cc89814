"""The way of a gradient from the loss to one parameter or node: which nodes made it small."""

from __future__ import annotations

import streamlit as st

from graphviz_torch import Graph

from ...jobs.values import Way
from ..figures import draw_graph, leaves
from ..linked import table
from ..results import result
from ..selection import name, selected
from ..text import escape


def draw_way(graph: Graph, *, key: str) -> None:
    """Choose a parameter, or the selected node; its way is marked in the graph, and is a table."""
    nodes = {name(node): node.id for node in graph.nodes}
    targets: dict[str, str | int] = {
        title: title if node is None else node for title, node, _ in leaves(graph)
    }
    node = selected(key)
    others = [] if node is None else [name(graph.nodes[node])]
    before = st.session_state.get(f"{key} target")
    targets = {**{each: nodes[each] for each in [before, *others] if each in nodes}, **targets}
    if not targets:
        st.info("No gradient of this recording ends in a leaf.", icon=":material/info:")
        return
    title = str(
        st.selectbox(
            "From the loss to", list(targets), key=f"{key} target",
            help="A parameter or an input. A node that is selected can be chosen too.",
        )
    )  # fmt: skip
    doing = "Following the gradient"
    way: Way | None = result("way", doing, ".recordings:way_to", graph, targets[title])
    if way is None:
        return
    st.markdown("  \n".join(map(escape, way.says)))
    if not way.steps:
        return
    left, right = st.columns([1, 1], gap="medium")
    with left:
        draw_graph(way.payload, key=key, place="way view", color_by="gradient", height=600)
    with right:
        table(
            [
                {
                    "node": name(graph.nodes[step]),
                    "operation": graph.nodes[step].title,
                    "module": module,
                    "norm": ("" if norm is None else f"{norm:.4g}", norm),
                    "factor": ("" if factor is None else f"{factor:.3g}", factor),
                }
                for step, module, norm, factor in way.steps
            ],
            [step for step, *_ in way.steps],
            key=key,
            place="way",
            label="The gradient's way",
            helps={"factor": "This norm, divided by the norm before"},
        )
