"""The script with which the app was started, `graphviz-torch app train.py`, and what it recorded.

The command runs the script, and the app reads the file that grows. Two files beside it are all that
both say to each other: "stop", by which the app asks for the end, and "ended", which has the exit
code.
"""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from ..jobs.values import FIRST_JUDGED, LAST_JUDGED, Opened
from .text import count, escape
from .upload import opened

COMMAND = "graphviz-torch app train.py"
LOOK = 1.5  # seconds between two looks at a file that grows


def title() -> str:
    """Return what to call it: "train.py"; "" if the app was started without a script."""
    return _path().name.removesuffix(".json.gz")


def runs() -> bool:
    """Return True while the script runs."""
    return bool(os.environ.get("GRAPHVIZ_TORCH_LIVE")) and not _path().with_name("ended").exists()


def open_own(*, key: str) -> Opened | None:
    """Return the last step that the script recorded; None if there is none, which is then said."""
    known: tuple[str, Opened] | None = st.session_state.get(f"{key} own opened")
    if known is not None and not st.session_state.get("follow", True):
        return known[1]
    try:
        status = _path().stat()
        data = _path().read_bytes()
    except OSError as error:
        st.error(f"The recording of {title()} was removed: {error.strerror}.")
        return None
    return opened(data, title(), f"{status.st_ino} {status.st_size}", key=f"{key} own")


def follow(found: Opened) -> None:
    """Say which step is shown and whether the script runs; draw the page again after a new step."""
    if not os.environ.get("GRAPHVIZ_TORCH_LIVE"):
        return
    seen = runs(), _size()

    @st.fragment(run_every=LOOK if seen[0] else None)
    def draw() -> None:
        ended = runs() != seen[0]
        if ended or (_size() != seen[1] and st.session_state.get("follow", True)):
            st.rerun()
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(_state(found), width="content")
            if seen[0]:
                st.toggle("Follow", True, key="follow", help="Off: the step that is shown stays.")
                asked = _path().with_name("stop").exists()
                st.button("Stop", icon=":material/stop:", disabled=asked, on_click=_stop,
                          help="Ends the script as Ctrl-C in the terminal does.")  # fmt: skip

    draw()


def say_how() -> None:
    """How to look at a program that is not among the examples."""
    st.markdown("**Your own model**: run your script in a terminal, and the app opens its step.")
    st.code(COMMAND, language=None)


def _state(found: Opened) -> str:
    """Return the state of the script as Markdown."""
    step = f"step {found.steps[-1]:,}, {count(len(found.steps), 'step')} recorded"
    if len(found.steps) > FIRST_JUDGED + LAST_JUDGED:
        step += f", the first {FIRST_JUDGED} and the last {LAST_JUDGED} judged"
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
