"""Wait for a job with its progress in view and a button that stops it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ..jobs.job import Job, JobError, Queued
from .text import escape, prose

T = TypeVar("T")
_QUIET = 0.7  # seconds: what is faster than this shows no progress


def visitor() -> str:
    """A name for this visitor, so that each has one job at once."""
    made: str = st.session_state.setdefault("visitor", secrets.token_hex(8))
    return made


def again(key: str) -> None:
    """Forget that the visitor stopped a job at `key`."""
    st.session_state.pop(f"{key} stopped", None)


def _stop(key: str, what: Hashable) -> None:
    st.session_state[f"{key} stopped"] = what


def wait(
    job: Job[T],
    doing: str,
    what: Hashable,
    *,
    key: str,
    on_report: Callable[[Any], tuple[float, str]] | None = None,
) -> T | None:
    """The job's result; None where it failed or was stopped, which is then said in place.

    Any control that the visitor touches meanwhile starts the page anew, and so ends the job.

    Args:
        job: what to wait for.
        doing: what it does, for the visitor: "Running backward".
        what: the visitor's choice; once stopped, the same choice waits until `again`.
        key: of this place on the page.
        on_report: is given what the job reports; returns how far it is, from 0 to 1, and says it.
    """
    if st.session_state.get(f"{key} stopped") == what:
        st.info("Stopped. Press the button to run it again.", icon=":material/stop_circle:")
        return None
    began = time.monotonic()
    place = st.empty()
    bar = None
    done, said = None, ""
    with job:
        for value in job:
            seconds = time.monotonic() - began
            queue = ""
            if isinstance(value, Queued):
                before = {0: "you are next", 1: "1 visitor is before you"}
                others = before.get(value.before, f"{value.before} visitors are before you")
                queue = f"waiting for a free place, {others}"
            elif value is not None and on_report is not None:
                done, said = on_report(value)
            if seconds < _QUIET:
                continue
            if bar is None:
                bar = _bar(place, key, what)
            limit = queue or f"{said or f'{seconds:.0f} s'}, at most {job.seconds:g} s of computing"
            share = seconds / job.seconds if done is None else done
            bar.progress(0.0 if queue else min(1.0, share), f"{escape(doing)}: {limit}")
    place.empty()
    try:
        return job.result
    except JobError as error:
        # What a function of ours refuses, it says in a sentence.
        said = str(error) if error.kind == "ValueError" else f"{error.kind}: {error}"
        st.error(prose(said), icon=":material/error:")
        return None


def _bar(place: DeltaGenerator, key: str, what: Hashable) -> DeltaGenerator:
    with place.container(horizontal=True, vertical_alignment="bottom"):
        bar = st.progress(0.0)
        st.button(
            "Stop", key=f"{key} stop", icon=":material/stop:", on_click=_stop, args=[key, what]
        )
    return bar
