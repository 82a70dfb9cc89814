"""Room on Python's stack for the frames that a watch adds to the program's module calls.

A module call has one frame more while modules are watched, so a program that nearly reaches
`sys.getrecursionlimit()` would exceed it. Seen with Python 3.11 and PyTorch 2.13: four frames for a
nested module, five where it is watched.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

_FRAMES = 4  # of a module call without a watch
_BASE = 64  # frames of ours at the end of the deepest call

_lock = threading.Lock()
_open: set[RecursionRoom] = set()
_limit = 0  # of the program
_raised = 0  # the limit that was set last


class RecursionRoom:
    """Raises the recursion limit while it is open, unless the program sets its own.

    Each of several rooms is for one more frame of each module call.

    >>> before, room = sys.getrecursionlimit(), RecursionRoom()
    >>> room.open()
    >>> sys.getrecursionlimit() - before == before // 4 + 64
    True
    >>> room.close()
    >>> sys.getrecursionlimit() == before
    True
    """

    def open(self) -> None:
        """Raise the limit; does nothing if the room is open."""
        with _lock:
            _note_own_limit()
            _open.add(self)
            _set_limit()

    def close(self) -> None:
        """Lower the limit; does nothing if the room is not open."""
        with _lock:
            _open.discard(self)
            _set_limit()


def _note_own_limit() -> None:
    """Note the program's limit before the first room opens."""
    global _limit, _raised
    if not _open and sys.getrecursionlimit() != _raised:  # else it could not be lowered before
        _limit = _raised = sys.getrecursionlimit()


def _set_limit() -> None:
    global _raised
    if sys.getrecursionlimit() == _raised:  # else the program has set its own
        limit = _limit + len(_open) * (_limit // _FRAMES + _BASE)
        with suppress(RecursionError):  # the program is deeper than it could be before
            sys.setrecursionlimit(limit)
            _raised = limit
