"""Wait for a job with its progress in view and a button that stops it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import streamlit as st

from app.jobs import Job, JobError

T = TypeVar("T")
_QUIET = 0.7  # seconds: what is faster than this shows no progress


def _stop(key: str) -> None:
    st.session_state[key] = True


def wait(
    job: Job[T], doing: str, *, key: str, on_report: Callable[[Any], None] | None = None
) -> T | None:
    """The job's result; None where it failed or was stopped, which is then said in place.

    Any control that the visitor touches meanwhile starts the page anew, and so ends the job.
    `key` names this place; a stop is remembered there until `st.session_state` loses it.
    """
    stopped = f"{key} stopped"
    if st.session_state.pop(stopped, False):
        st.info("Stopped. Press the button to run it again.", icon=":material/stop_circle:")
        return None
    began = time.monotonic()
    place = st.empty()
    bar = None
    with job:
        for value in job:
            if value is not None and on_report is not None:
                on_report(value)
            seconds = time.monotonic() - began
            if seconds < _QUIET:
                continue
            text = f"{doing} · {seconds:.0f} s of at most {job.seconds:g} s"
            if bar is None:
                with place.container(horizontal=True, vertical_alignment="center"):
                    bar = st.progress(0.0, text)
                    st.button(
                        "Stop",
                        key=f"{key} stop",
                        icon=":material/stop:",
                        on_click=_stop,
                        args=[stopped],
                    )
            bar.progress(min(1.0, seconds / job.seconds), text)
    place.empty()
    try:
        return job.result
    except JobError as error:
        st.error(f"{error.kind}: {error}", icon=":material/error:")
        return None
