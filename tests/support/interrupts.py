"""Raise KeyboardInterrupt at any line of the package, or wherever Python handles signals."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection
from dis import opname
from functools import cache
from linecache import getline
from types import CodeType, FrameType
from typing import Any, NamedTuple

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


class Pass(NamedTuple):
    """A place at which Python handles signals, at one of the times that a program passes it."""

    code: CodeType
    offset: int  # of the instruction
    number: int  # counted from 1


class Signal:
    """A tracing function that raises KeyboardInterrupt where Python handles a signal.

    Python handles signals where a function begins, after a call, and after a backward jump. Code
    outside of the folders, code that runs while `counts()` is false, and the beginnings of
    `unguarded` functions are not counted.

    Args:
        folder: beginning of the paths of the code that counts, or several.
        counts: whether a place counts now.
        unguarded: the functions whose beginnings do not count.
        at: where the exception is raised. No other code is traced, which takes most of the time.
    """

    def __init__(
        self,
        folder: str | tuple[str, ...],
        counts: Callable[[], bool],
        unguarded: Collection[CodeType] = (),
        at: Pass | None = None,
    ) -> None:
        self.at, self.folder, self.counts = at, folder, counts
        self.unguarded = unguarded
        self.passes: list[Pass] = []  # in order
        self._numbers = Counter[tuple[CodeType, int]]()
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
            if not code.co_filename.startswith(self.folder) or (self.at and code != self.at.code):
                return None
            frame.f_trace_opcodes = True
            self._ends[frame], self._after[frame] = _signal_points(code), 0
            looks = code not in self.unguarded
        else:
            if event == "return":
                del self._ends[frame], self._after[frame]
            return self
        if looks and self.counts():
            place = frame.f_code, frame.f_lasti
            self._numbers[place] += 1
            self.passes.append(Pass(*place, self._numbers[place]))
            if self.passes[-1] == self.at:
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
