"""Open a recording from a file: read as values, nothing in it is evaluated or unpickled."""

from __future__ import annotations

import tempfile
from pathlib import Path

import streamlit as st

from app.jobs.job import Job
from app.panels.progress import wait
from graphviz_torch import Graph, load

SECONDS = 60
MAX_MEGABYTES = 100


def read(data: bytes, name: str) -> Graph:
    """The graph in an uploaded file. It is read in a job, so a hostile file breaks nothing else.

    Raises:
        ValueError: if it is no recording, or one without a node.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        path.write_bytes(data)
        try:
            graph = load(path)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), name)) from None
    if not graph.nodes:
        raise ValueError(f"{name} is an empty recording: there is no node in it.")
    return graph


def open_recording(label: str, *, key: str) -> Graph | None:
    """A place for a file, and the graph in it; None before there is one, or if it is none."""
    file = st.file_uploader(
        label,
        type=["json", "gz"],
        key=f"{key} file",
        max_upload_size=MAX_MEGABYTES,
        help="A file that `Graph.save` wrote, or the JSON download of this app.",
    )
    if file is None:
        return None
    held: tuple[str, Graph] | None = st.session_state.get(f"{key} graph")
    if held is None or held[0] != file.file_id:
        job = Job(read, file.getvalue(), file.name, seconds=SECONDS)
        graph = wait(job, f"Reading {file.name}", file.file_id, key=key)
        if graph is None:
            return None
        held = st.session_state[f"{key} graph"] = (file.file_id, graph)
    return held[1]
