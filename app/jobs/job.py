"""Work in a process of its own, so that it can be stopped and what breaks there breaks alone.

One server process has torch loaded and forks for every job (about 10 ms), so visitors share no
tensor, mode or hook; a job that crashes, fills its memory or never ends leaves the app as it was.
Only plain values come back. The app's own process never loads torch.
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
_BEAT = 0.1  # seconds between two looks at a job
_START = 120  # seconds in which a job's process must have begun


class JobError(Exception):
    """A job gave no result: it raised (`kind` is the exception's name), crashed or was stopped."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Queued:
    """What a job reports while it waits for a place."""

    before: int  # jobs that stand before it in the queue


class Job(Generic[T]):
    """A call in its own process, which is killed when the block is left or its time is spent.

    The limit is time of computing, so that a busy machine makes a visitor wait and fails nobody. A
    job that does not compute is killed after ten times its limit.

    Iterating gives what the function reports (it may call `report(value)`), `Queued` while all
    places are taken, and None at least every 0.1 s; after that `result` is there.

        with Job("math:sqrt", 9, seconds=10, visitor="Ann") as job:
            for progress in job: ...
        job.result

    Args:
        function: where it is, "module:name"; ":name" stands for one in `backward.py`'s package.
        arguments: plain values.
        seconds: of computing, all its threads together; after so many it is killed.
        visitor: whose job it is; a visitor's second job waits for the end of the first.
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
        life.shutdown(socket.SHUT_WR)  # the server sees this and kills
        if select.select([life], [], [], _BEAT)[0]:
            _leave(life, ticket)
        else:  # a server that still loads torch, or a process that the kernel holds
            threading.Thread(target=_leave, args=(life, ticket), daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        self._ticket = QUEUE.enter(self._visitor)
        while (before := self._ticket.before) is not None:
            yield Queued(before)
            time.sleep(_BEAT)
        self._connection, self._life = _connect()
        self._connection.send_bytes(pickle.dumps(self._call))
        end = time.monotonic() + _START  # the server may still load torch
        while self._outcome is None:
            if time.monotonic() > end:
                message = f"Stopped after {WAIT * self.seconds:g} s without a result."
                self._outcome = "error", ("Timeout", message)
            elif not self._connection.poll(_BEAT):
                yield None
            else:
                try:
                    kind, value = pickle.loads(self._connection.recv_bytes())
                except (EOFError, OSError):
                    kind, value = "error", self._ending()
                if kind == "begun":
                    end = time.monotonic() + WAIT * self.seconds
                elif kind == "report":
                    yield value
                else:
                    self._outcome = kind, value

    def _ending(self) -> tuple[str, str]:
        """Why the process ended without a result; the server says it once the process is dead."""
        if self._life is not None and self._life.recv(1) == SPENT:
            return "Timeout", f"Stopped after {self.seconds:g} s of computing, the limit of a run."
        return "Crash", "The run's process ended: a crash in native code, or no memory left."

    @property
    def result(self) -> T:
        """What the function returned.

        Raises:
            JobError: if it raised, crashed or was stopped.
        """
        if self._outcome is None:
            raise JobError("Stopped", "The run was stopped.")
        kind, value = self._outcome
        if kind == "error":
            raise JobError(*value)
        returned: T = value
        return returned


def _leave(life: socket.socket, ticket: Ticket) -> None:
    """Free the place once the job is dead."""
    with life:
        life.recv(1)  # from the server, or because it died
        ticket.leave()


def run(function: str, *arguments: Any, seconds: float = 20) -> Any:
    """What the function returns in a process of its own; for short calls without progress.

    Raises:
        JobError: if it raises, crashes or takes longer.
    """
    with Job[Any](function, *arguments, seconds=seconds) as job:
        for _ in job:
            pass
    return job.result


class _Server:
    """The server's process, the socket to it, and the folder in which jobs have theirs."""

    def __init__(self) -> None:
        self.door, theirs = socket.socketpair()
        self.lock = threading.Lock()
        self.folder = tempfile.TemporaryDirectory(prefix=f"graphviz_torch-{os.getpid()}-")
        with theirs:
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; from {__package__}.server import serve; "
                f"serve({theirs.fileno()}, {self.folder.name!r})"
            )
            command = [sys.executable, "-c", code]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])

    def close(self) -> None:
        """After the process died: remove what it left."""
        self.door.close()
        self.folder.cleanup()


_server: _Server | None = None
_STARTING = threading.Lock()


def start() -> _Server:
    """The server, started if it does not run; it then loads torch while the page is drawn."""
    global _server
    with _STARTING:
        if _server is not None and _server.process.poll() is not None:
            _server.close()
            _server = None
        if _server is None:
            _server = _Server()
        return _server


def _connect() -> tuple[Connection, socket.socket]:
    """The two sockets of a fresh process: for its messages, and for its life."""
    server = start()
    ours, theirs = socket.socketpair()
    life, held = socket.socketpair()
    with theirs, held, server.lock:
        socket.send_fds(server.door, [b"+"], [theirs.fileno(), held.fileno()])
    return Connection(ours.detach()), life
