"""Disable the garbage collector while a large value is built."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def with_gc_disabled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return `function`, wrapped to run with the garbage collector disabled.

    Use it for functions that keep all objects that they create: a collection would find no garbage.
    Collections took half of the time that grouping 100,000 nodes took.

    >>> with_gc_disabled(gc.isenabled)(), gc.isenabled()
    (False, True)
    """

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        enabled = gc.isenabled()
        try:  # Ctrl-C before the `__exit__` of a context manager would leave the collector disabled
            if enabled:  # otherwise another thread has disabled the collector, and will enable it
                gc.disable()
            result = function(*args, **kwargs)
        finally:
            if enabled:
                gc.enable()
        return result

    return run
