"""Open a recording from a file: read as values, nothing in it is evaluated or unpickled."""

from __future__ import annotations

import shlex

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from ..jobs.job import Job
from ..jobs.values import Opened
from . import devices
from .progress import visitor, wait
from .text import escape

SECONDS = 60
MAX_MEGABYTES = 50
MOST_FILES = 16
HELP = "A file that `Graph.save` wrote, or the JSON download of this app."


def open_recording(label: str, *, key: str) -> Opened | None:
    """A place for a file, and the graph in it; None before there is one, or if it is not one."""
    file = st.file_uploader(
        label,
        key=f"{key} file",
        max_upload_size=MAX_MEGABYTES,
        help=HELP,
    )
    if file is None:
        return None
    return _uploaded(file, key=key)


def open_recordings(label: str, *, key: str) -> list[tuple[str, Opened]]:
    """A place for several files, one for each rank, and their graphs with their names."""
    files = st.file_uploader(
        label,
        key=f"{key} files",
        max_upload_size=MAX_MEGABYTES,
        accept_multiple_files=True,
        help=HELP,
    )
    found = []
    for file in sorted(files[:MOST_FILES], key=lambda file: file.name):
        one = _uploaded(file, key=f"{key} {file.name}")
        if one is not None:
            found.append((file.name, one))
    if len(files) > MOST_FILES:
        st.info(f"The first {MOST_FILES} files are read.", icon=":material/info:")
    return found


def _uploaded(file: UploadedFile, *, key: str) -> Opened | None:
    """The recording in an uploaded file; None for anything else, with a line that says so."""
    if file.name.endswith(".py"):
        _offer(file.name, file.getvalue())
        return None
    if not file.name.endswith((".json", ".gz")):
        said = f"{escape(file.name)} is not a recording: pass a .json or a .json.gz file."
        st.error(said, icon=":material/error:")
        return None
    return opened(file.getvalue(), file.name, file.file_id, key=key)


def opened(data: bytes, name: str, file_id: str, *, key: str) -> Opened | None:
    """The recording in a file, read in a job once; None where that failed."""
    known: tuple[str, Opened] | None = st.session_state.get(f"{key} opened")
    if known is None or known[0] != file_id:
        job = Job[Opened](".recordings:read", data, name, seconds=SECONDS, visitor=visitor())
        made = wait(job, f"Reading {name}", file_id, key=key)
        if made is None:
            return None
        known = st.session_state[f"{key} opened"] = (file_id, made)
    return known[1]


def _offer(name: str, data: bytes) -> None:
    """Give the command that runs a script: a page runs nothing that somebody drops on it."""
    words = ["graphviz-torch", "app", name]
    if b"cuda" in data and next(iter(devices.choices())).startswith("sim"):
        words[2:2] = ["--simulate", "2"]
    said = f"{escape(name)} is a script. Run it in a terminal, and the app follows it:"
    st.info(said, icon=":material/terminal:")
    st.code(shlex.join(words), language=None)
