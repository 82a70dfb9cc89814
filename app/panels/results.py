"""Wait for a job, with a progress bar and a button that stops the job, and cache the results."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from graphviz_torch import Graph

from ..jobs.job import Job, JobError, Queued
from .language import translated
from .text import escape, prose

T = TypeVar("T")
_QUIET_SECONDS = 0.7  # the progress bar appears after this time


def visitor() -> str:
    """Return the id of this visitor, who may run one job at a time."""
    made: str = st.session_state.setdefault("visitor", secrets.token_hex(8))
    return made


def allow_restart(key: str) -> None:
    """Allow the job at `key` to run again after the visitor has stopped it."""
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
    """Return the result of the job. If it fails or is stopped, draw a message and return None.

    If the visitor uses a control of the page, Streamlit runs the page again, which stops the job.

    Args:
        job: the job.
        doing: description of the job for the visitor, such as "Running backward".
        what: the visitor's choice. If the visitor stops the job, no job runs for the same choice
            until `allow_restart` is called.
        key: Streamlit key of this place on the page.
        on_report: function of a value that the job reports. It returns (progress from 0 to 1, text
            that describes the progress).
    """
    if st.session_state.get(f"{key} stopped") == what:
        st.info(
            translated("Stopped. Press the button to run it again."), icon=":material/stop_circle:"
        )
        return None
    began = time.monotonic()
    place = st.empty()
    bar = None
    done, text = None, ""
    with job:
        for value in job:
            seconds = time.monotonic() - began
            queue = ""
            if isinstance(value, Queued):
                ahead = {0: "you are next", 1: "1 visitor is before you"}
                others = ahead.get(value.ahead, f"{value.ahead} visitors are before you")
                queue = f"waiting for a free place, {others}"
            elif value is not None and on_report is not None:
                done, text = on_report(value)
            if seconds < _QUIET_SECONDS:
                continue
            if bar is None:
                bar = _bar(place, key, what)
            most = translated("at most {limit:g} s of computing").format(limit=job.seconds)
            limit = queue or f"{text or f'{seconds:.0f} s'}, {most}"
            share = seconds / job.seconds if done is None else done
            bar.progress(0.0 if queue else min(1.0, share), f"{escape(doing)}: {limit}")
    place.empty()
    try:
        return job.result
    except JobError as error:
        # The message of a ValueError from the app's functions is a full sentence.
        text = str(error) if error.kind == "ValueError" else f"{error.kind}: {error}"
        st.error(prose(text), icon=":material/error:")
        return None


def _bar(place: DeltaGenerator, key: str, what: Hashable) -> DeltaGenerator:
    with place.container(horizontal=True, vertical_alignment="bottom"):
        bar = st.progress(0.0)
        st.button(
            translated("Stop"),
            key=f"{key} stop",
            icon=":material/stop:",
            on_click=_stop,
            args=[key, what],
        )
    return bar


SECONDS = 60  # default time limit of a job
_MAX_RESULTS = 4  # number of cached results for one place on a page
_shared: dict[Any, tuple[Any, Any]] = {}  # key of a call -> (its arguments, its result)
_lock = threading.Lock()


def result(
    key: str,
    doing: str,
    function: str,
    *arguments: Any,
    seconds: float = SECONDS,
    shared: bool = False,
    on_report: Callable[[Any], tuple[float, str]] | None = None,
) -> Any:
    """Return the result of a function for these arguments, from the cache or from a new job.

    Args:
        key: Streamlit key of this place on the page.
        doing: description of the job for the visitor.
        function, arguments: as for `Job`.
        seconds: limit on CPU time, after which the job is killed.
        shared: True to cache the result for all visitors, as for examples.
        on_report: as for `wait`.

    Returns:
        The result. If the job fails or is stopped, a message is drawn, and the result is None.
    """
    call = (function, *map(_key, arguments))
    results: dict[Any, tuple[Any, Any]] = st.session_state.setdefault(f"{key} results", {})
    with _lock:
        known = _shared if call in _shared else results
    if call in known:
        return known[call][1]
    job = Job[Any](function, *arguments, seconds=seconds, visitor=visitor())
    made = wait(job, doing, call, key=key, on_report=on_report)
    if made is None:
        return None
    if shared:
        with _lock:
            _shared[call] = arguments, made
        return made
    while len(results) >= _MAX_RESULTS:
        results.pop(next(iter(results)))
    results[call] = arguments, made
    return made


def _key(argument: Any) -> Any:
    """Return a cache key for an argument: for a graph its `id`, because comparing graphs is slow.

    The graph is kept alive with the result, so that its `id` is not reused.
    """
    if isinstance(argument, Graph):
        return "graph", id(argument)
    return tuple(map(_key, argument)) if isinstance(argument, tuple) else argument


def forget(key: str) -> None:
    """Drop the cached results at `key`, so that the job runs again, even after it was stopped."""
    allow_restart(key)
    st.session_state.pop(f"{key} results", None)
