"""The gradient flow diagram, and the gradient's path from the loss to one node."""

from __future__ import annotations

import base64

import streamlit as st

from graphviz_torch import Graph

from ..jobs.values import GradientSteps
from .figures import leaves
from .linked import name, selected_node, table
from .results import result
from .text import escape


def draw_flow(graphs: list[Graph]) -> None:
    """Draw the gradient flow of a recording, or of two recordings side by side."""
    drawn: str | None = result("flow", "Drawing", ".recordings:as_flow", tuple(graphs))
    if drawn is not None:
        data = base64.b64encode(drawn.encode()).decode()
        alt = "The gradient from the loss to the data, and which parameters learn"
        st.html(f'<img alt="{alt}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">')


def draw_path(graph: Graph, *, key: str) -> None:
    """Draw the gradient's path from the loss to a chosen parameter or to the selected node."""
    nodes = {name(node): node.id for node in graph.nodes}
    targets: dict[str, str | int] = {
        title: title if node is None else node for title, node, _ in leaves(graph)
    }
    node = selected_node(key)
    others = [] if node is None else [name(graph.nodes[node])]
    before = st.session_state.get(f"{key} target")
    targets = {**{each: nodes[each] for each in [before, *others] if each in nodes}, **targets}
    if not targets:
        st.info("In this recording, no gradient reaches a leaf.", icon=":material/info:")
        return
    title = str(
        st.selectbox(
            "From the loss to", list(targets), key=f"{key} target",
            help="A parameter or an input. The selected node can be chosen, too.",
        )
    )  # fmt: skip
    doing = "Following the gradient"
    call = ".recordings:gradient_path"
    path: GradientSteps | None = result("path", doing, call, graph, targets[title])
    if path is None:
        return
    st.markdown("  \n".join(map(escape, path.sentences)))
    table(
        [
            {
                "node": name(graph.nodes[step]),
                "operation": graph.nodes[step].title,
                "module": module,
                "norm": ("" if norm is None else f"{norm:.4g}", norm),
                "factor": ("" if factor is None else f"{factor:.3g}", factor),
            }
            for step, module, norm, factor in path.steps
        ],
        [step for step, *_ in path.steps],
        key=key,
        place="path",
        label="The gradient's path",
        helps={"factor": "Norm at this node, divided by the norm at the previous node"},
    )
