"""The recording of the script with which the app was started: `graphviz-torch app train.py`."""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from ..jobs.values import Opened
from .upload import opened

COMMAND = "graphviz-torch app train.py"


def title() -> str:
    """What to call it: "train.py"; "" where the app was started without a script."""
    return _path().name.removesuffix(".json.gz")


def open_own(*, key: str) -> Opened | None:
    """What the script recorded, read once; None where that failed, which is then said in place."""
    try:
        data = _path().read_bytes()
    except OSError as error:
        st.error(f"The recording of {title()} was removed: {error.strerror}.")
        return None
    return opened(data, title(), title(), key=f"{key} own")


def say_how() -> None:
    """How to look at a program that is not among the examples."""
    st.markdown("**Your own model**: run your script in a terminal, and the app opens its step.")
    st.code(COMMAND, language=None)


def _path() -> Path:
    return Path(os.environ.get("GRAPHVIZ_TORCH_RECORDING", ""))
