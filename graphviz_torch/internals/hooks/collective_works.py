"""Match each wait for a `Work` with the ProcessGroup call that created the `Work`.

Waits in C++, as by DDP's reducer at the end of a backward, and reads of a `Work`'s future are not
seen. On CUDA, a wait returns immediately, and a stream waits instead.

The methods of a ProcessGroup that return a `Work` are found by their docstrings, which is private
(2.8 to 2.15).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import wraps
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from ...graph.immutable import NamedTuple
from ..frames import hide_frame
from .watch import Row

_FUNCTIONS = os.path.join("torch", "distributed", "distributed_c10d.py")


class Wait(NamedTuple):
    """A wait for a `Work`."""

    call: int | None  # number of the collective that created the `Work`, if known
    at_once: bool  # True if the torch.distributed function that started the collective also waits


class WorkMethods:
    """Replacements for `Work.wait` and for the ProcessGroup methods that return a `Work`.

    Args:
        last_call: returns the number of the collective that this thread started last.
        on_wait_start: called before a wait.
        on_wait_end: called after a wait, with the `time.perf_counter()` at which it began.
        on_raise: called when a wait raises.
    """

    def __init__(
        self,
        last_call: Callable[[], int | None],
        on_wait_start: Callable[[Wait], object],
        on_wait_end: Callable[[Wait, float], object],
        on_raise: Callable[[], object],
    ) -> None:
        self._last_call, self._on_wait_start = last_call, on_wait_start
        self._on_wait_end, self._on_raise = on_wait_end, on_raise
        self._calls: WeakKeyDictionary[Any, tuple[int, CodeType]] = WeakKeyDictionary()

    def rows(self) -> Iterator[Row]:
        """Yield the methods to replace."""
        for name, method in list(vars(dist.ProcessGroup).items()):
            if "-> c10d::Work" in (getattr(method, "__doc__", None) or ""):
                yield dist.ProcessGroup, name, self._wrap_collective
        yield dist.Work, "wait", self._wait

    def _wrap_collective(self, original: Any) -> Any:
        @wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            before = self._last_call()
            try:
                work = original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            call = self._last_call()
            if call is not None and call != before and work is not None:
                self._calls[work] = call, sys._getframe(1).f_code
            return work

        return make

    def _wait(self, original: Any) -> Any:
        @wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call, maker = self._calls.get(work, (None, None))
            code = sys._getframe(1).f_code
            event = Wait(call, code is maker and code.co_filename.endswith(_FUNCTIONS))
            self._on_wait_start(event)
            begin = time.perf_counter()
            try:
                result = original(work, *args, **kwargs)
            except BaseException as error:
                self._on_raise()
                hide_frame(error)
                raise
            self._on_wait_end(event, begin)
            return result

        return wait
