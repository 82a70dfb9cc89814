"""Run jobs: function calls in processes of their own, which may crash and can be stopped.

A server process imports torch once, and then forks a process for each job in about 10 ms. Visitors
therefore share no tensor, mode or hook. A job that crashes, fills its memory or never ends does not
affect the app. A job returns only plain values, and the app's own process never imports torch.
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

from .server import SPENT, WAIT


class Ticket:
    """A job's place in the queue. The job waits, and may then run until `leave` is called."""

    def __init__(self, jobs: JobQueue, visitor: str) -> None:
        self._jobs, self.visitor = jobs, visitor

    @property
    def ahead(self) -> int | None:
        """The number of tickets before this one in the queue; None once this job may run."""
        return self._jobs.ahead(self)

    def leave(self) -> None:
        """Leave the queue, or stop running, so that the next job may run."""
        self._jobs.leave(self)


class JobQueue:
    """A queue in which `count` jobs may run at the same time while the others wait.

    >>> queue = JobQueue(1)
    >>> first, second = queue.enter("Ann"), queue.enter("Ben")
    >>> print(first.ahead, second.ahead)
    None 0
    >>> first.leave()
    >>> print(second.ahead)
    None
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._queue: list[Ticket] = []
        self._running: list[Ticket] = []

    def enter(self, visitor: str) -> Ticket:
        """Return a new ticket at the end of the queue. Its job runs at once if a place is free."""
        ticket = Ticket(self, visitor)
        with self._lock:
            self._queue.append(ticket)
            self._admit()
        return ticket

    def ahead(self, ticket: Ticket) -> int | None:
        """Return the number of tickets before this one in the queue; None once its job may run."""
        with self._lock:
            return self._queue.index(ticket) if ticket in self._queue else None

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket. If it was removed before, nothing happens."""
        with self._lock:
            for tickets in (self._queue, self._running):
                if ticket in tickets:
                    tickets.remove(ticket)
            self._admit()

    def _admit(self) -> None:
        for ticket in list(self._queue):
            if len(self._running) >= self.count:
                return
            # A visitor's second job waits for the first one, and jobs of other visitors may run
            # before it.
            if all(running.visitor != ticket.visitor for running in self._running):
                self._queue.remove(ticket)
                self._running.append(ticket)


T = TypeVar("T")

QUEUE = JobQueue(max(2, os.cpu_count() or 2))
_POLL_SECONDS = 0.1
_MAX_START_SECONDS = 120  # time limit for the start of a job's process


class JobError(Exception):
    """The failure of a job: it raised an exception of class `kind`, crashed or was stopped."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Queued:
    """The progress of a job that waits in the queue."""

    ahead: int  # number of jobs before this one in the queue


class Job(Generic[T]):
    """A function call in its own process, which is killed at the end of the `with` block.

    A job is also killed when its CPU time reaches `seconds`. Because only CPU time counts, a
    visitor of a busy machine waits longer instead of getting an error. A job that uses no CPU time,
    because it waits for something, is killed after ten times `seconds`.

    Iterating over the job yields values that the function passes to `report(value)`, `Queued` while
    the job waits in the queue, and None at least every 0.1 s. Afterwards `result` is available.

        with Job("math:sqrt", 9, seconds=10, visitor="Ann") as job:
            for progress in job: ...
        job.result

    Args:
        function: "module:name"; a module name that begins with a dot is relative to this package.
        arguments: plain values.
        seconds: limit on CPU time, summed over all threads.
        visitor: id of the visitor. A second job of the same visitor waits until the first one ends.
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
        life.shutdown(socket.SHUT_WR)  # a signal for the server to kill the job
        if select.select([life], [], [], _POLL_SECONDS)[0]:
            _leave(life, ticket)
        else:  # the server still imports torch, or the process has not ended yet
            threading.Thread(target=_leave, args=(life, ticket), daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        self._ticket = QUEUE.enter(self._visitor)
        while (ahead := self._ticket.ahead) is not None:
            yield Queued(ahead)
            time.sleep(_POLL_SECONDS)
        self._connection, self._life = _connect()
        self._connection.send_bytes(pickle.dumps(self._call))
        end = time.monotonic() + _MAX_START_SECONDS  # the server may still be importing torch
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
        """Return why the process ended without a result, after the server has reaped it."""
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
    """Wait until the job's process has ended, then free the job's place in the queue."""
    with life:
        life.recv(1)  # returns when the server writes, closes or dies
        ticket.leave()


def run(function: str, *arguments: Any, seconds: float = 20) -> Any:
    """Run a function in a process of its own, and return its result.

    Raises:
        JobError: if the function raises, crashes or exceeds the limit.
    """
    with Job[Any](function, *arguments, seconds=seconds) as job:
        for _ in job:
            pass
    return job.result


class _ServerProcess:
    """The process of the job server, the socket to it, and the folder that contains job folders."""

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
    """Return the job server, and start it if needed. It imports torch in the background."""
    global _server
    with _START_LOCK:
        if _server is not None and _server.process.poll() is not None:
            _server.close()
            _server = None
        if _server is None:
            _server = _ServerProcess()
        return _server


def _connect() -> tuple[Connection, socket.socket]:
    """Request a process for a job, and return the sockets for its messages and its lifetime."""
    server = start()
    app_end, job_end = socket.socketpair()
    life, held = socket.socketpair()
    with job_end, held, server.lock:
        socket.send_fds(server.requests, [b"+"], [job_end.fileno(), held.fileno()])
    return Connection(app_end.detach()), life
