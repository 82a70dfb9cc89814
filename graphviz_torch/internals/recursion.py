"""Room on Python's stack for the frames that a recording adds to those of the program.

A module call has one frame more while modules are watched, so a program that nearly reaches
`sys.getrecursionlimit()` would exceed it. Seen with Python 3.11 and PyTorch 2.13: four frames for a
nested module, five where it is recorded.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

_FRAMES = 4  # of a module call without a recording; there is one more with it
_BASE = 64  # frames of ours at the end of the deepest call

_lock = threading.Lock()
_open = 0  # recordings that watch
_limits = 0, 0  # before the first one, and with it


class RecursionRoom:
    """Raises the recursion limit while any recording watches, unless the program sets its own."""

    def __enter__(self) -> None:
        global _open, _limits
        with _lock:
            _open += 1
            if _open == 1:
                limit = sys.getrecursionlimit()
                _limits = limit, limit + limit // _FRAMES + _BASE
                sys.setrecursionlimit(_limits[1])

    def __exit__(self, *_: object) -> None:
        global _open
        with _lock:
            _open -= 1
            if _open == 0 and sys.getrecursionlimit() == _limits[1]:
                with suppress(RecursionError):  # the program is deeper than it could be before
                    sys.setrecursionlimit(_limits[0])
