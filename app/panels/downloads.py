"""The formats in which a graph leaves the app. A file is made when its button is pressed."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import streamlit as st

from graphviz_torch import Finding, Graph, draw_graph, to_dot, to_html, to_tensorboard


def draw_downloads(graph: Graph, findings: Sequence[Finding], *, key: str) -> None:
    """A button for each format."""
    files: dict[str, tuple[str, str, Callable[[], bytes]]] = {
        "SVG": ("graph.svg", "image/svg+xml", lambda: as_picture(graph, "svg")),
        "PNG": ("graph.png", "image/png", lambda: as_picture(graph, "png")),
        "PDF": ("graph.pdf", "application/pdf", lambda: as_picture(graph, "pdf")),
        "DOT": ("graph.dot", "text/vnd.graphviz", lambda: to_dot(graph).encode()),
        "JSON": ("graph.json", "application/json", lambda: as_json(graph)),
        "HTML": ("graph.html", "text/html", lambda: to_html(graph, findings=findings).encode()),
        "TensorBoard": ("tensorboard.zip", "application/zip", lambda: as_tensorboard(graph)),
        "Findings": ("findings.json", "application/json", lambda: as_findings(findings)),
    }
    st.subheader("Take it with you", anchor=False)
    with st.container(horizontal=True, gap="small"):
        for name, (file, mime, make) in files.items():
            st.download_button(
                name,
                make,
                file,
                mime,
                key=f"{key} {name}",
                on_click="ignore",
                icon=":material/download:",
            )


def as_picture(graph: Graph, format: str) -> bytes:
    """The still picture as "svg", "png" or "pdf"."""
    drawn = draw_graph(graph).pipe(format)
    return drawn if isinstance(drawn, bytes) else drawn.encode()


def as_json(graph: Graph) -> bytes:
    """The graph as `Graph.save` writes it: the Explore page and `load` open it again."""
    with tempfile.TemporaryDirectory() as folder:
        return graph.save(Path(folder) / "graph.json").read_bytes()


def as_tensorboard(graph: Graph) -> bytes:
    """A TensorBoard run in a zip file: unpack it, then `tensorboard --logdir .`."""
    with tempfile.TemporaryDirectory() as folder:
        to_tensorboard(graph, Path(folder) / "graph")
        return zipped(Path(folder))


def zipped(folder: Path) -> bytes:
    """A zip file of what is in a folder."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                packed.write(path, path.relative_to(folder))
    return made.getvalue()


def as_findings(findings: Sequence[Finding]) -> bytes:
    """The findings as JSON."""
    return json.dumps([asdict(finding) for finding in findings], indent=2).encode()
