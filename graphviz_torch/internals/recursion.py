"""Raise Python's recursion limit for the frames that a watch adds to the program's module calls.

A module call has one frame more while modules are watched. A program that nearly reaches
`sys.getrecursionlimit()` would therefore exceed it. With Python 3.11 and PyTorch 2.13, a nested
module's call has four frames, and five frames if it is watched.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

_FRAMES = 4  # number of frames of a module call without a watch
_BASE = 64  # number of our own frames inside the deepest call

_lock = threading.Lock()
_open: set[RaisedRecursionLimit] = set()
_limit = 0  # the program's own limit
_raised = 0  # the limit that we set last


class RaisedRecursionLimit:
    """A raised recursion limit, from `open` to `close`, unless the program sets a limit itself.

    Each open instance raises the limit by one frame for each module call that fits into the
    program's limit.

    >>> before, raised = sys.getrecursionlimit(), RaisedRecursionLimit()
    >>> raised.open()
    >>> sys.getrecursionlimit() - before == before // 4 + 64
    True
    >>> raised.close()
    >>> sys.getrecursionlimit() == before
    True
    """

    def open(self) -> None:
        """Raise the limit, unless this instance is already open."""
        with _lock:
            _note_own_limit()
            _open.add(self)
            _set_limit()

    def close(self) -> None:
        """Lower the limit again, if this instance is open."""
        with _lock:
            _open.discard(self)
            _set_limit()


def _note_own_limit() -> None:
    """Store the recursion limit of the program before the first instance raises it."""
    global _limit, _raised
    # A limit that we set is still there if `close` could not lower it.
    if not _open and sys.getrecursionlimit() != _raised:
        _limit = _raised = sys.getrecursionlimit()


def _set_limit() -> None:
    global _raised
    if sys.getrecursionlimit() == _raised:  # otherwise the program has set another limit
        limit = _limit + len(_open) * (_limit // _FRAMES + _BASE)
        with suppress(RecursionError):  # raised if the stack is already deeper than the new limit
            sys.setrecursionlimit(limit)
            _raised = limit
