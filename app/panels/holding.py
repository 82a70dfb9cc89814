"""Results that stay while a visitor's choice stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import streamlit as st

from app.jobs.job import Job
from app.panels.progress import again, wait

T = TypeVar("T")
SECONDS = 60


def hold(key: str, doing: str, function: Callable[..., T], *arguments: Any) -> T | None:
    """What the function gives for these arguments: from before, or from a job now.

    Args:
        key: of this place on the page.
        doing: what the job does, for the visitor.
        function, arguments: what to run.
    """
    held: tuple[tuple[Any, ...], T] | None = st.session_state.get(f"{key} held")
    if held is None or held[0] != arguments:
        result = wait(Job(function, *arguments, seconds=SECONDS), doing, arguments, key=key)
        if result is None:
            return None
        held = st.session_state[f"{key} held"] = (arguments, result)
    return held[1]


def forget(key: str) -> None:
    """Run it again the next time, also if it was stopped."""
    again(key)
    st.session_state.pop(f"{key} held", None)
