"""Cache the results of jobs. All visitors share the results of examples."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import streamlit as st

from graphviz_torch import Graph

from ..jobs.job import Job
from .progress import allow_restart, visitor, wait

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
