"""The gradient as a river, and its path from the loss to one parameter: what made it small."""

from __future__ import annotations

import base64

import streamlit as st

from graphviz_torch import Graph

from ...jobs.values import Way
from ..figures import leaves
from ..linked import table
from ..results import result
from ..selection import name, selected
from ..text import escape


def draw_flow(graphs: list[Graph]) -> None:
    """The gradient of a recording as a river; of two, side by side."""
    drawn: str | None = result("flow", "Drawing", ".recordings:as_flow", tuple(graphs))
    if drawn is not None:
        data = base64.b64encode(drawn.encode()).decode()
        alt = "The gradient from the loss to the data, and which parameters learn"
        st.html(f'<img alt="{alt}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">')


def draw_way(graph: Graph, *, key: str) -> None:
    """Choose a parameter or the selected node, and see the nodes between the loss and it."""
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
        label="The gradient's path",
        helps={"factor": "This norm, divided by the norm before"},
    )
