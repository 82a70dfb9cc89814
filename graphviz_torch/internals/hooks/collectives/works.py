"""Match each wait for a `Work` with the ProcessGroup call that created the `Work`.

Not seen: waits in C++ (DDP's reducer at the end of a backward), and reads of a `Work`'s future. On
CUDA, a wait returns immediately and a stream waits instead.

The methods of a ProcessGroup that return a `Work` are found by their docstrings, which is private
(2.8 to 2.15).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from types import CodeType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch.distributed as dist

from ...frames import hide

_FUNCTIONS = os.path.join("torch", "distributed", "distributed_c10d.py")


class Wait(NamedTuple):
    """A wait for a `Work`."""

    call: int | None  # number of the collective that created the `Work`, if known
    at_once: bool  # True if the torch.distributed function that started it also waits


class WorkMethods:
    """Replacements for `Work.wait` and for the ProcessGroup methods that return a `Work`.

    Args:
        last_call: returns the number of the collective last started in this thread.
        waiting: called before a wait.
        waited: called after a wait, with the `time.perf_counter` of its start.
        raised: called when a wait raises.
    """

    def __init__(
        self,
        last_call: Callable[[], int | None],
        waiting: Callable[[Wait], object],
        waited: Callable[[Wait, float], object],
        raised: Callable[[], object],
    ) -> None:
        self._last_call, self._waiting = last_call, waiting
        self._waited, self._raised = waited, raised
        self._theirs: list[tuple[Any, str, Any, Any]] = []  # class, name, original and replacement
        self._calls: WeakKeyDictionary[Any, tuple[int, CodeType]] = WeakKeyDictionary()

    def install(self) -> None:
        """Replace the methods, unless they are replaced already."""
        if self._theirs:
            return
        for name, method in list(vars(dist.ProcessGroup).items()):
            if "-> c10d::Work" in (getattr(method, "__doc__", None) or ""):
                self._replace(dist.ProcessGroup, name, self._making(method))
        self._replace(dist.Work, "wait", self._wait(dist.Work.wait))

    def remove(self) -> None:
        """Restore the originals, except where other code has replaced them since."""
        while self._theirs:
            owner, name, theirs, ours = self._theirs[-1]
            if vars(owner)[name] is ours:
                setattr(owner, name, theirs)
            self._theirs.pop()

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        # stored before the replacement, for an interrupt in between
        self._theirs.append((owner, name, vars(owner)[name], ours))
        setattr(owner, name, ours)

    def _making(self, theirs: Any) -> Any:
        @wraps(theirs)
        def make(*args: Any, **kwargs: Any) -> Any:
            before = self._last_call()
            try:
                work = theirs(*args, **kwargs)
            except BaseException as error:
                hide(error)
                raise
            call = self._last_call()
            if call is not None and call != before and work is not None:
                self._calls[work] = call, sys._getframe(1).f_code
            return work

        return make

    def _wait(self, theirs: Any) -> Any:
        @wraps(theirs)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call, maker = self._calls.get(work, (None, None))
            code = sys._getframe(1).f_code
            event = Wait(call, code is maker and code.co_filename.endswith(_FUNCTIONS))
            self._waiting(event)
            begin = time.perf_counter()
            try:
                result = theirs(work, *args, **kwargs)
            except BaseException as error:
                self._raised()
                hide(error)
                raise
            self._waited(event, begin)
            return result

        return wait
