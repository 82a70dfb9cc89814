"""Open recordings from uploaded files. Nothing in a file is evaluated or unpickled."""

from __future__ import annotations

import shlex

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from ..jobs.job import Job
from ..jobs.values import OpenedGraph
from . import devices
from .results import visitor, wait
from .text import escape

SECONDS = 60
MAX_MEGABYTES = 50
MAX_FILES = 16
HELP = "A file written by `Graph.save`, or the JSON download of this app."


def open_recording(label: str, *, key: str) -> OpenedGraph | None:
    """Draw an uploader, and return the uploaded recording; None without a valid file."""
    file = st.file_uploader(
        label,
        key=f"{key} file",
        max_upload_size=MAX_MEGABYTES,
        help=HELP,
    )
    if file is None:
        return None
    return _read_upload(file, key=key)


def open_recordings(label: str, *, key: str) -> list[tuple[str, OpenedGraph]]:
    """Draw an uploader for the files of several ranks, and return names and recordings."""
    files = st.file_uploader(
        label,
        key=f"{key} files",
        max_upload_size=MAX_MEGABYTES,
        accept_multiple_files=True,
        help=HELP,
    )
    found = []
    for file in sorted(files[:MAX_FILES], key=lambda file: file.name):
        one = _read_upload(file, key=f"{key} {file.name}")
        if one is not None:
            found.append((file.name, one))
    if len(files) > MAX_FILES:
        st.info(f"Only the first {MAX_FILES} files are read.", icon=":material/info:")
    return found


def _read_upload(file: UploadedFile, *, key: str) -> OpenedGraph | None:
    """Return the recording in a file; for any other file, draw a message and return None."""
    if file.name.endswith(".py"):
        _draw_run_command(file.name, file.getvalue())
        return None
    if not file.name.endswith((".json", ".gz")):
        text = f"{escape(file.name)} is not a recording: pass a .json or a .json.gz file."
        st.error(text, icon=":material/error:")
        return None
    return read_recording(file.getvalue(), file.name, file.file_id, key=key)


def read_recording(data: bytes, name: str, file_id: str, *, key: str) -> OpenedGraph | None:
    """Read a file in a job, once for each `file_id`; return None if the job fails."""
    known: tuple[str, OpenedGraph] | None = st.session_state.get(f"{key} opened")
    if known is None or known[0] != file_id:
        job = Job[OpenedGraph](".recordings:read", data, name, seconds=SECONDS, visitor=visitor())
        made = wait(job, f"Reading {name}", file_id, key=key)
        if made is None:
            return None
        known = st.session_state[f"{key} opened"] = (file_id, made)
    return known[1]


def _draw_run_command(name: str, data: bytes) -> None:
    """Draw the command that runs a script; the app does not run uploaded code."""
    words = ["graphviz-torch", "app", name]
    if b"cuda" in data and next(iter(devices.choices())).startswith("sim"):
        words[2:2] = ["--simulate", "2"]
    text = f"{escape(name)} is a script. Run it in a terminal, and the app shows its steps:"
    st.info(text, icon=":material/terminal:")
    st.code(shlex.join(words), language=None)
