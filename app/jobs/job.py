"""Jobs: function calls in processes of their own, which can be stopped and may crash.

A server process has imported torch and forks for every job (about 10 ms), so visitors share no
tensor, mode or hook. A job that crashes, fills its memory or never ends leaves the app as it was.
Only plain values are returned. The app's own process never imports torch.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Generic, TypeVar

from .job_queue import JobQueue, Ticket
from .server import SPENT, WAIT

T = TypeVar("T")

QUEUE = JobQueue(max(2, os.cpu_count() or 2))
_POLL_SECONDS = 0.1
_MAX_START_SECONDS = 120  # until a job's process must have begun


class JobError(Exception):
    """Raised if a job raised (`kind` is the exception's name), crashed or was stopped."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Queued:
    """The progress of a job that waits in the queue."""

    ahead: int  # jobs before it in the queue


class Job(Generic[T]):
    """A call in its own process, which is killed at the end of the block or at its time limit.

    The limit is computing time, so that a busy machine makes a visitor wait instead of failing. A
    job that does not compute is killed after ten times its limit.

    Iterating yields the values that the function passes to `report(value)`, `Queued` while the
    queue is full, and None at least every 0.1 s. Afterwards `result` is available.

        with Job("math:sqrt", 9, seconds=10, visitor="Ann") as job:
            for progress in job: ...
        job.result

    Args:
        function: "module:name"; a module that begins with a dot is relative to this package.
        arguments: plain values.
        seconds: limit on computing time, summed over all threads.
        visitor: the visitor's id; a visitor's second job waits for the end of the first.
    """

    def __init__(
        self, function: str, *arguments: Any, seconds: float, visitor: str | None = None
    ) -> None:
        module, _, name = function.partition(":")
        if module.startswith("."):
            module = f"{__package__}{module}"
        self._call, self.seconds = (f"{module}:{name}", arguments, seconds), seconds
        self._visitor = visitor or f"{id(self)}"
        self._ticket: Ticket | None = None
        self._connection: Connection | None = None
        self._life: socket.socket | None = None
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
            self._connection.close()
            self._connection = None
        life, ticket = self._life, self._ticket
        self._life = self._ticket = None
        if ticket is None:
            return
        if life is None:
            ticket.leave()
            return
        life.shutdown(socket.SHUT_WR)  # makes the server kill the job
        if select.select([life], [], [], _POLL_SECONDS)[0]:
            _leave(life, ticket)
        else:  # the server still imports torch, or the kernel has not yet ended the process
            threading.Thread(target=_leave, args=(life, ticket), daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        self._ticket = QUEUE.enter(self._visitor)
        while (ahead := self._ticket.ahead) is not None:
            yield Queued(ahead)
            time.sleep(_POLL_SECONDS)
        self._connection, self._life = _connect()
        self._connection.send_bytes(pickle.dumps(self._call))
        end = time.monotonic() + _MAX_START_SECONDS  # the server may still import torch
        while self._outcome is None:
            if time.monotonic() > end:
                message = f"Stopped after {WAIT * self.seconds:g} s without a result."
                self._outcome = "error", ("Timeout", message)
            elif not self._connection.poll(_POLL_SECONDS):
                yield None
            else:
                try:
                    kind, value = pickle.loads(self._connection.recv_bytes())
                except (EOFError, OSError):
                    kind, value = "error", self._failure()
                if kind == "begun":
                    end = time.monotonic() + WAIT * self.seconds
                elif kind == "report":
                    yield value
                else:
                    self._outcome = kind, value

    def _failure(self) -> tuple[str, str]:
        """Return why the process ended without a result; blocks until the server has reaped it."""
        if self._life is not None and self._life.recv(1) == SPENT:
            return "Timeout", f"Stopped after {self.seconds:g} s of computing, the limit of a run."
        return "Crash", "The run's process ended: native code crashed, or memory ran out."

    @property
    def result(self) -> T:
        """The function's return value.

        Raises:
            JobError: if the function raised, crashed or was stopped.
        """
        if self._outcome is None:
            raise JobError("Stopped", "The run was stopped.")
        kind, value = self._outcome
        if kind == "error":
            raise JobError(*value)
        returned: T = value
        return returned


def _leave(life: socket.socket, ticket: Ticket) -> None:
    """Free the job's place in the queue once its process has ended."""
    with life:
        life.recv(1)  # returns when the server writes, closes or dies
        ticket.leave()


def run(function: str, *arguments: Any, seconds: float = 20) -> Any:
    """Run a function in a process of its own and return its value, without progress.

    Raises:
        JobError: if the function raises, crashes or exceeds the limit.
    """
    with Job[Any](function, *arguments, seconds=seconds) as job:
        for _ in job:
            pass
    return job.result


class _ServerProcess:
    """The server's process, the socket to it, and the parent folder of the jobs' folders."""

    def __init__(self) -> None:
        self.requests, server_end = socket.socketpair()
        self.lock = threading.Lock()
        self.folder = tempfile.TemporaryDirectory(prefix=f"graphviz_torch-{os.getpid()}-")
        with server_end:
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; from {__package__}.server import serve; "
                f"serve({server_end.fileno()}, {self.folder.name!r})"
            )
            command = [sys.executable, "-c", code]
            self.process = subprocess.Popen(command, pass_fds=[server_end.fileno()])

    def close(self) -> None:
        """Remove the socket and the folder after the process has ended."""
        self.requests.close()
        self.folder.cleanup()


_server: _ServerProcess | None = None
_START_LOCK = threading.Lock()


def start() -> _ServerProcess:
    """Return the server, started if it does not run; it imports torch in the background."""
    global _server
    with _START_LOCK:
        if _server is not None and _server.process.poll() is not None:
            _server.close()
            _server = None
        if _server is None:
            _server = _ServerProcess()
        return _server


def _connect() -> tuple[Connection, socket.socket]:
    """Request a new process; return the sockets for its messages and for its life."""
    server = start()
    app_end, job_end = socket.socketpair()
    life, held = socket.socketpair()
    with job_end, held, server.lock:
        socket.send_fds(server.requests, [b"+"], [job_end.fileno(), held.fileno()])
    return Connection(app_end.detach()), life
