"""The gradient of a recording as a river; of two, side by side."""

from __future__ import annotations

import base64

import streamlit as st

from graphviz_torch import Graph

from ..results import result


def draw_flow(graphs: list[Graph]) -> None:
    """The sheet."""
    drawn: str | None = result("flow", "Drawing", ".recordings:as_flow", tuple(graphs))
    if drawn is not None:
        data = base64.b64encode(drawn.encode()).decode()
        alt = "The gradient from the loss to the data, and which parameters learn"
        st.html(f'<img alt="{alt}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">')
