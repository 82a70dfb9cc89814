"""Show the script of `graphviz-torch app train.py` and its recording.

The command runs the script, and the app reads the recording, a growing file. Both communicate
through two files in the folder of the recording: the app creates "stop" to end the script, and the
command writes the script's exit code to "ended".
"""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from ..jobs.values import FIRST_CHECKED, LAST_CHECKED, OpenedGraph
from .language import translated
from .text import count, escape
from .upload import read_recording

COMMAND = "graphviz-torch app train.py"
POLL_SECONDS = 1.5


def title() -> str:
    """Return the name of the script, such as "train.py"; "" if the app has no script."""
    return _path().name.removesuffix(".json.gz")


def runs() -> bool:
    """Return True if the script is running."""
    return bool(os.environ.get("GRAPHVIZ_TORCH_LIVE")) and not _path().with_name("ended").exists()


def open_own(*, key: str) -> OpenedGraph | None:
    """Return the last step that the script has recorded; None if the file was removed."""
    known: tuple[str, OpenedGraph] | None = st.session_state.get(f"{key} own opened")
    if known is not None and not st.session_state.get("follow", True):
        return known[1]
    try:
        status = _path().stat()
        data = _path().read_bytes()
    except OSError as error:
        st.error(f"The recording of {title()} was removed: {error.strerror}.")
        return None
    file_id = f"{status.st_ino} {status.st_size}"
    return read_recording(data, title(), file_id, key=f"{key} own")


def follow(found: OpenedGraph) -> None:
    """Draw the state of the script and the shown step; run the page again after each new step."""
    if not os.environ.get("GRAPHVIZ_TORCH_LIVE"):
        return
    seen = runs(), _size()

    @st.fragment(run_every=POLL_SECONDS if seen[0] else None)
    def draw() -> None:
        ended = runs() != seen[0]
        if ended or (_size() != seen[1] and st.session_state.get("follow", True)):
            st.rerun()
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(_state(found), width="content")
            if seen[0]:
                st.toggle("Follow", True, key="follow", help="Off: keep showing this step.")
                asked = _path().with_name("stop").exists()
                st.button("Stop", icon=":material/stop:", disabled=asked, on_click=_stop,
                          help="Ends the script as Ctrl-C in the terminal does.")  # fmt: skip

    draw()


def draw_command() -> None:
    """Draw the command with which a visitor can open their own program."""
    st.markdown(
        translated(
            "**Your own model**: run your script in a terminal, and the app shows its steps."
        )
    )
    st.code(COMMAND, language=None)


def _state(found: OpenedGraph) -> str:
    """Return the state of the script as Markdown."""
    step = f"step {found.steps[-1]:,}, {count(len(found.steps), 'step')} recorded"
    if len(found.steps) > FIRST_CHECKED + LAST_CHECKED:
        step += f", the first {FIRST_CHECKED} and the last {LAST_CHECKED} checked"
    if runs():
        return f":material/radio_button_checked: **{escape(title())} runs**: {step}"
    code = _path().with_name("ended").read_text()
    stopped = _path().with_name("stop").exists()
    ended = "was stopped" if stopped else f"has ended with exit code {code}"
    return f"**{escape(title())}** {escape(ended)}: {step}"


def _stop() -> None:
    _path().with_name("stop").touch()


def _size() -> int:
    try:
        return _path().stat().st_size
    except OSError:
        return 0


def _path() -> Path:
    return Path(os.environ.get("GRAPHVIZ_TORCH_RECORDING", ""))
