"""Results that stay while a visitor's choice stays; those of the examples are everybody's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import streamlit as st

from graphviz_torch import Graph

from ..jobs.job import Job
from .progress import again, visitor, wait

SECONDS = 60
_MOST = 4  # results of one place on a page
_shared: dict[Any, tuple[Any, Any]] = {}  # arguments and result, by call
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
    """What the function gives for these arguments: from before, or from a job now.

    Args:
        key: of this place on the page.
        doing: what the job does, for the visitor.
        function, arguments: what to run, as `Job` takes them.
        seconds: after so many the job is killed.
        shared: the result is the same for everybody, and one of few: no visitor waits for it twice.
        on_report: as in `wait`.

    Returns:
        The result; None where the job failed or was stopped, which is then said in place.
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
    while len(results) >= _MOST:
        results.pop(next(iter(results)))
    results[call] = arguments, made
    return made


def _key(argument: Any) -> Any:
    """What stands for an argument: a graph is long to compare, and stays alive with its result."""
    if isinstance(argument, Graph):
        return "graph", id(argument)
    return tuple(map(_key, argument)) if isinstance(argument, tuple) else argument


def forget(key: str) -> None:
    """Run it again the next time, also if it was stopped."""
    again(key)
    st.session_state.pop(f"{key} results", None)
