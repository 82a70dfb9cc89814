"""The Python frames of the user's program: who called, and what the variables are."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def caller() -> FrameType | None:
    """The frame of the first caller outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def local_variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame by name, in the order in which they were bound.

    In a function, the globals that it reads follow. Names that start with "_" are private, and
    those that are no identifiers Python's own: left out.
    """
    values = frame.f_locals
    found = {k: value for k, value in values.items() if k.isidentifier() and k[0] != "_"}
    # Before 3.13 a function's frame keeps what it gave until the function ends, and so would keep
    # tensors alive. Cleared if nobody else has it: this name, getrefcount's argument, the frame.
    snapshot = frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(values, dict)
    if snapshot and sys.getrefcount(values) <= 3:
        values.clear()
    shared = frame.f_globals
    read = (name for name in frame.f_code.co_names if name in shared and name[0] != "_")
    return found | {name: shared[name] for name in read if name not in found}


def hide(error: BaseException) -> None:
    """Take the frame that caught an error out of its traceback.

    To be called in that frame's `except`, before a bare `raise`, which puts nothing back.
    """
    trace = error.__traceback__
    error.__traceback__ = None if trace is None else trace.tb_next
