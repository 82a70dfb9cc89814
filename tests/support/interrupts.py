"""Raise KeyboardInterrupt at any line of the package, or wherever Python handles signals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dis import opname
from functools import cache
from linecache import getline
from types import CodeType, FrameType
from typing import Any

# First words of lines at which Python handles no signal. Signals are handled only after calls and
# jumps. The line of a `with` is also traced at the end of its block.
QUIET = ("with", "del", "try:")


def interrupt() -> None:
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt


class Interrupt:
    """A tracing function that raises an exception at the nth executed line in a folder."""

    def __init__(
        self,
        at: int,
        folder: str,
        outside: Collection[CodeType] = (),
        raising: Callable[[], None] = interrupt,
    ) -> None:
        self.left, self.folder, self.raising = at, folder, raising
        self.outside = outside  # no line counts while one of these functions runs

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        line = getline(frame.f_code.co_filename, frame.f_lineno).split()
        if event == "line" and line[0] not in QUIET and not self._is_outside(frame):
            self.left -= 1
            if self.left == 0:
                self.raising()
        return self

    def _is_outside(self, frame: FrameType | None) -> bool:
        while self.outside and frame is not None:
            if frame.f_code in self.outside:
                return True
            frame = frame.f_back
        return False


class Signal:
    """A tracing function that raises KeyboardInterrupt where Python handles the nth signal.

    Python handles signals where a function begins, after a call, and after a backward jump. Code
    outside of the folders, code that runs while `counts()` is false, and the beginnings of
    `unguarded` functions are not counted.
    """

    def __init__(
        self,
        at: int,
        folder: str | tuple[str, ...],
        counts: Callable[[], bool],
        unguarded: Collection[CodeType] = (),
    ) -> None:
        self.at, self.folder, self.counts = at, folder, counts
        self.unguarded = unguarded
        self.places: list[tuple[CodeType, int]] = []  # code and offset of each place, in order
        self._ends: dict[FrameType, bytes] = {}  # frame -> `_signal_points` of the frame's code
        # Frame -> 1 if Python handles signals before the frame's next instruction, else 0.
        self._after: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            at = frame.f_lasti
            looks = self._after[frame]
            self._after[frame] = self._ends[frame][at]
        elif event == "call":
            code = frame.f_code
            if not code.co_filename.startswith(self.folder):
                return None
            frame.f_trace_opcodes = True
            self._ends[frame], self._after[frame] = _signal_points(code), 0
            looks = code not in self.unguarded
        else:
            if event == "return":
                del self._ends[frame], self._after[frame]
            return self
        if looks and self.counts():
            self.places.append((frame.f_code, frame.f_lasti))
            if len(self.places) == self.at:
                raise KeyboardInterrupt
        return self


@cache
def _signal_points(code: CodeType) -> bytes:
    """Return for each bytecode offset 1 if Python handles signals after the instruction, else 0."""
    names = map(opname.__getitem__, code.co_code)
    return bytes(name.startswith("CALL") or "BACKWARD" in name for name in names)


def interrupted(
    run: Callable[[], None],
    interrupt: Interrupt | Signal,
    kind: type[BaseException] = KeyboardInterrupt,
) -> bool:
    """Call `run` with an interrupt; return whether an exception of this class was raised."""
    sys.settrace(interrupt)
    try:
        run()
    except kind:
        return True
    finally:
        sys.settrace(None)
    return False
