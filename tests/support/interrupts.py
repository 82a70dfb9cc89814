"""A Ctrl-C at any line of the package that a program runs, or wherever Python lets one in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dis import opname
from linecache import getline
from types import CodeType, FrameType
from typing import Any

# Python looks for signals after calls and jumps: not before a `del`, nor at a `try`, which does
# nothing, nor where a `with` is left, whose line comes a second time then.
QUIET = ("with", "del", "try:")


class Interrupt:
    """A tracing function that raises KeyboardInterrupt at the nth line below a folder that runs."""

    def __init__(self, at: int, folder: str, outside: Collection[CodeType] = ()) -> None:
        self.left, self.folder = at, folder
        self.outside = outside  # not while one of these runs

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

    Python looks for signals where a function begins, after a call and after a jump back. Only code
    below a folder, or one of several, is counted, and there only while `counts` says so. The begin
    of an `unguarded` function is left out.
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
        self._before: dict[FrameType, str] = {}  # the instruction that ran last

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
    """Run it with an interrupt; did it arrive?"""
    sys.settrace(interrupt)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
