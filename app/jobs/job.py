"""Work in a process of its own, so that it can be stopped and what breaks there breaks alone.

One server process has torch loaded and forks for every job (about 10 ms), so visitors share no
tensor, mode or hook; a job that crashes, fills its memory or never ends leaves the app as it was.
Only plain values come back.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

PLACES = threading.BoundedSemaphore(max(2, os.cpu_count() or 2))  # jobs at once; others wait
_BEAT = 0.1  # seconds between two looks at a job
_ROOT = Path(__file__).resolve().parents[2]


class JobError(Exception):
    """A job gave no result: it raised (`kind` is the exception's name), crashed or was stopped."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Job(Generic[T]):
    """A call `function(*arguments)` in its own process, ended after `seconds`.

    Iterating gives what the function reports (it may call `report(value)`), and None at least
    every 0.1 s; after that `result` is there. Leaving the block ends the process.

        with Job(work, 3, seconds=10) as job:
            for progress in job: ...
        job.result
    """

    def __init__(self, function: Callable[..., T], *arguments: Any, seconds: float) -> None:
        self._call, self.seconds = (function, arguments, seconds), seconds
        self._connection: Connection | None = None
        self._outcome: tuple[str, Any] | None = None

    def __enter__(self) -> Job[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            self._connection.close()  # the job's process sees this and ends
            self._connection = None
            PLACES.release()

    def __iter__(self) -> Iterator[Any]:
        while not PLACES.acquire(timeout=_BEAT):
            yield None
        try:
            self._connection = connect()
        except BaseException:
            PLACES.release()
            raise
        self._connection.send(self._call)
        end = time.monotonic() + self.seconds
        while self._outcome is None:
            if time.monotonic() > end:
                self._outcome = "Timeout", f"Stopped after {self.seconds:g} s, the limit of a run."
            elif not self._connection.poll(_BEAT):
                yield None
            else:
                try:
                    word, value = self._connection.recv()
                except (EOFError, ConnectionError):
                    word, value = (
                        "Crash",
                        "The run's process ended: a crash in native code, or no memory left.",
                    )
                if word == "report":
                    yield value
                else:
                    self._outcome = word, value

    @property
    def result(self) -> T:
        """What the function returned.

        Raises:
            JobError: if it raised, crashed or was stopped.
        """
        if self._outcome is None:
            raise JobError("Stopped", "The run was stopped.")
        word, value = self._outcome
        if word != "result":
            raise JobError(word, value)
        returned: T = value
        return returned


def run(function: Callable[..., T], *arguments: Any, seconds: float = 20) -> T:
    """`function(*arguments)` in a process of its own; for short calls without progress."""
    with Job(function, *arguments, seconds=seconds) as job:
        for _ in job:
            pass
    return job.result


@functools.lru_cache(maxsize=1)
def _server() -> tuple[socket.socket, threading.Lock, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        serve = f"from app.jobs.server import serve; serve({theirs.fileno()})"
        command = [sys.executable, "-c", serve]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=_ROOT)
    return ours, threading.Lock(), process


_STARTING = threading.Lock()


def start() -> None:
    """Start the server, if it does not run; it then loads torch while the page is drawn."""
    with _STARTING:
        if _server()[2].poll() is not None:
            _server.cache_clear()
        _server()


def connect() -> Connection:
    """A connection to a fresh process."""
    start()
    door, lock, _ = _server()
    ours, theirs = socket.socketpair()
    with theirs, lock:
        socket.send_fds(door, [b"+"], [theirs.fileno()])
    return Connection(ours.detach())
