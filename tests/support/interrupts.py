"""Raise KeyboardInterrupt at any line of the package, or wherever Python handles signals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dis import opname
from linecache import getline
from types import CodeType, FrameType
from typing import Any

# First words of lines at which Python handles no signal: it does so after calls and jumps. The line
# of a `with` also appears at the end of its block.
QUIET = ("with", "del", "try:")


class Interrupt:
    """A tracing function that raises KeyboardInterrupt at the nth executed line in a folder."""

    def __init__(self, at: int, folder: str, outside: Collection[CodeType] = ()) -> None:
        self.left, self.folder = at, folder
        self.outside = outside  # no line counts while one of these functions runs

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        line = getline(frame.f_code.co_filename, frame.f_lineno).split()
        if event == "line" and line[0] not in QUIET and not self._is_outside(frame):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    def _is_outside(self, frame: FrameType | None) -> bool:
        while self.outside and frame is not None:
            if frame.f_code in self.outside:
                return True
            frame = frame.f_back
        return False


class Signal:
    """A tracing function that raises KeyboardInterrupt at the nth place where a signal can arrive.

    Python handles signals where a function begins, after a call, and after a backward jump. Only
    code in one of the folders counts, only while `counts()` is true, and not the beginning of an
    `unguarded` function.
    """

    def __init__(
        self,
        at: int,
        folder: str | tuple[str, ...],
        counts: Callable[[], bool],
        unguarded: Collection[CodeType] = (),
    ) -> None:
        self.left, self.folder, self.counts = at, folder, counts
        self.unguarded = unguarded
        self._before: dict[FrameType, str] = {}  # the last instruction of each frame

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        frame.f_trace_opcodes = True
        looks = event == "call" and frame.f_code not in self.unguarded
        if event == "opcode":
            before = self._before.get(frame, "")
            looks = before.startswith("CALL") or "BACKWARD" in before
            self._before[frame] = opname[frame.f_code.co_code[frame.f_lasti]]
        elif event == "return":
            self._before.pop(frame, None)
        if looks and self.counts():
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted(run: Callable[[], None], interrupt: Interrupt | Signal) -> bool:
    """Call `run` with an interrupt; return whether KeyboardInterrupt was raised."""
    sys.settrace(interrupt)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
