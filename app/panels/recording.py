"""A run on one screen: the program, the graph, the gradients, the copies and their order."""

from __future__ import annotations

import functools
import logging

import streamlit as st

from ..jobs.job import JobError, run
from ..jobs.values import Opened
from . import text
from .figures import draw_gradients, draw_graph, draw_transfers
from .language import translated
from .selection import follow
from .tabs.ranks import draw_collectives
from .timeline import draw_timeline

FORMATS = {
    "SVG": ("graph.svg", "image/svg+xml"),
    "PNG": ("graph.png", "image/png"),
    "PDF": ("graph.pdf", "application/pdf"),
    "DOT": ("graph.dot", "text/vnd.graphviz"),
    "JSON": ("graph.json", "application/json"),
    "HTML": ("graph.html", "text/html"),
    "TensorBoard": ("tensorboard.zip", "application/zip"),
    "Findings": ("findings.json", "application/json"),
}
SECONDS = 60  # for a file
HEIGHT = 770  # of the graph, so that it ends where a window of 900 px does


def show(opened: Opened, *, key: str, ran: bool = True, color_by: str | None = None) -> None:
    """The graph, and beside it copies, their order, and gradients.

    Args:
        opened: what to show.
        key: names the selection on this page.
        ran: False while only the forward ran: gradients and copies are still to come.
        color_by: what the view's colours tell; None: the gradient, where backward ran.
    """
    middle, right = st.columns([1, 1], gap="medium")
    with middle:
        draw_graph(
            opened.payload,
            key=key,
            color_by=color_by,
            height=HEIGHT,
        )
    with right:
        draw_details(opened, key=key, ran=ran)


def draw_details(opened: Opened, *, key: str, ran: bool = True) -> None:
    """Copies, the order of everything, and gradients."""
    graph = opened.graph
    st.markdown(f"## {translated('Copies between devices')}", help=translated(text.TRANSFER))
    draw_transfers(graph, key=key, ran=ran)
    if graph.collectives:
        st.markdown(f"## {translated('Between ranks')}")
        draw_collectives(graph, key=key)
    st.markdown(
        f"## {translated('Order')}",
        help=translated(
            "Order, not time: forward on the left, backward on the right, a lane for each device. "
            "Orange arrows are copies. A click marks the same node on the whole page."
        ),
    )
    left_out = draw_timeline(graph, key=key, ran=ran)
    if left_out:
        st.caption(translated("{count:,} more are not drawn.").format(count=left_out))
    if ran:
        about = f"{translated(text.GRADIENT)}\n\n{translated(text.LEAF)}"
        st.markdown(f"## {translated('Gradients')}", help=about)
        draw_gradients(graph, key=key)


def begin(opened: Opened, *, key: str, start: int | None = None) -> None:
    """Before anything is drawn: the selection belongs to this graph, and begins at `start`."""
    follow(opened.graph, key=key, start=start)


def draw_downloads(opened: Opened, *, key: str) -> None:
    """A button for each format."""
    title, icon = translated("Take it with you"), ":material/download:"
    with st.expander(title, icon=icon, key=f"{key} downloads", on_change="rerun") as part:
        if not part.open:
            return
        with st.container(horizontal=True, gap="small"):
            for name, (file, mime) in FORMATS.items():
                st.download_button(
                    translated(name),
                    functools.partial(_written, opened, name),
                    file,
                    mime,
                    key=f"{key} {name}",
                    on_click="ignore",
                    icon=":material/download:",
                )


class Brief(logging.Filter):
    """What Streamlit logs of a download that failed: why, on a line, without a stack."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change such a record; leave every other as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and isinstance(error.__cause__, JobError):
            record.msg, record.args = "No file for a visitor: %s", (error.__cause__,)
            record.exc_info = None
        return True


logging.getLogger("streamlit.runtime.backend_operation_handler").addFilter(Brief())


def _written(opened: Opened, name: str) -> bytes:
    arguments = (opened.graph, opened.findings, name)
    data: bytes = run(".recordings:written", *arguments, seconds=SECONDS)
    return data
