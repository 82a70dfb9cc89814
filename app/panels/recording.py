"""Draw a recording on one screen: graph, gradients, copies, and a timeline."""

from __future__ import annotations

import functools
import logging

import streamlit as st

from ..jobs.job import JobError, run
from ..jobs.values import OpenedGraph
from . import text
from .figures import draw_gradients, draw_graph, draw_transfers
from .language import translated
from .linked import follow
from .ranks import draw_collectives
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
DOWNLOAD_SECONDS = 60  # time limit of the job that writes a file
HEIGHT = 770  # CSS pixels of the graph; it fills a window of 900 pixels


def show(opened: OpenedGraph, *, key: str, ran: bool = True, color_by: str | None = None) -> None:
    """Draw the graph and, beside it, copies, a timeline and gradients.

    Args:
        opened: the recording.
        key: key of the selection.
        ran: whether backward has run; if not, there are no gradients.
        color_by: coloring of the view; None colors by gradient, if there is one.
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


def draw_details(opened: OpenedGraph, *, key: str, ran: bool = True) -> None:
    """Draw copies, a timeline and gradients."""
    graph = opened.graph
    st.markdown(f"## {translated('Copies between devices')}", help=translated(text.TRANSFER))
    draw_transfers(graph, key=key, ran=ran)
    if graph.collectives:
        st.markdown(f"## {translated('Between ranks')}")
        draw_collectives(graph, key=key)
    st.markdown(
        f"## {translated('Order')}",
        help=translated(
            "The axis is order, not time: forward on the left, backward on the right, with a lane "
            "per device. Orange arrows are copies. A click selects the node on the whole page."
        ),
    )
    left_out = draw_timeline(graph, key=key, ran=ran)
    if left_out:
        st.caption(translated("{count:,} more are not drawn.").format(count=left_out))
    if ran:
        about = f"{translated(text.GRADIENT)}\n\n{translated(text.LEAF)}"
        st.markdown(f"## {translated('Gradients')}", help=about)
        draw_gradients(graph, key=key)


def begin(opened: OpenedGraph, *, key: str, start: int | None = None) -> None:
    """Set the graph in which nodes are selected. Call this before drawing.

    Args:
        opened: the recording.
        key: key of the selection.
        start: id of the node that is selected at first, or None.
    """
    follow(opened.graph, key=key, start=start)


def draw_downloads(opened: OpenedGraph, *, key: str) -> None:
    """Draw a download button for each format."""
    title, icon = translated("Download this recording"), ":material/download:"
    with st.expander(title, icon=icon, key=f"{key} downloads", on_change="rerun") as part:
        if not part.open:
            return
        with st.container(horizontal=True, gap="small"):
            for name, (file, mime) in FORMATS.items():
                st.download_button(
                    translated(name),
                    functools.partial(_to_format, opened, name),
                    file,
                    mime,
                    key=f"{key} {name}",
                    on_click="ignore",
                    icon=":material/download:",
                )


class ShortDownloadErrors(logging.Filter):
    """A log filter that shortens Streamlit's record of a failed download to one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record of a failed download; keep other records unchanged."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and isinstance(error.__cause__, JobError):
            record.msg, record.args = "No file for a visitor: %s", (error.__cause__,)
            record.exc_info = None
        return True


logging.getLogger("streamlit.runtime.backend_operation_handler").addFilter(ShortDownloadErrors())


def _to_format(opened: OpenedGraph, name: str) -> bytes:
    arguments = (opened.graph, opened.findings, name)
    data: bytes = run(".recordings:to_format", *arguments, seconds=DOWNLOAD_SECONDS)
    return data
