"""What a program waits for: which call of a ProcessGroup made a `Work`, and who waits for it.

Not seen: what C++ waits for (DDP's reducer, at the end of a backward), and what a program reads of
the future of a `Work`. On CUDA a wait ends at once; what waits is a stream.

Private: the methods of a ProcessGroup that make a `Work`, as their docstrings say (2.8 to 2.15).
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

    call: int | None  # that began it, where that is known
    at_once: bool  # does the function of torch.distributed wait that began it


class WorkMethods:
    """The methods that make a `Work`, and `Work.wait`, with ours in their place while installed.

    Args:
        last_call: the number of the collective that this thread has begun last.
        waiting, waited, raised: told before a wait, after it with when it began by
            `time.perf_counter`, and where it raises.
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
        self._theirs: list[tuple[Any, str, Any, Any]] = []  # class, name, theirs and ours
        self._calls: WeakKeyDictionary[Any, tuple[int, CodeType]] = WeakKeyDictionary()

    def install(self) -> None:
        """Put ours in their place, unless they are there."""
        if self._theirs:
            return
        for name, method in list(vars(dist.ProcessGroup).items()):
            if "-> c10d::Work" in (getattr(method, "__doc__", None) or ""):
                self._replace(dist.ProcessGroup, name, self._making(method))
        self._replace(dist.Work, "wait", self._wait(dist.Work.wait))

    def remove(self) -> None:
        """Put theirs back, where nobody else has put others there."""
        while self._theirs:
            owner, name, theirs, ours = self._theirs[-1]
            if vars(owner)[name] is ours:
                setattr(owner, name, theirs)
            self._theirs.pop()

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        self._theirs.append((owner, name, vars(owner)[name], ours))  # first: for an interrupt
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
