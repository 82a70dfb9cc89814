"""The server that forks a process for each job, and what such a process may take."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MAX_BYTES = 3 << 30  # that a job may allocate beyond what the server holds; CPU memory

_connection: Connection | None = None  # in a job's process: the way to the app


def report(value: Any) -> None:
    """Inside a job: hand a value to whoever waits for it. Elsewhere it does nothing."""
    if _connection is not None:
        _connection.send(("report", value))


def serve(handle: int) -> None:
    """Fork for each socket that comes in; end when the app does."""
    from app.jobs.run import Choice, play  # loads torch, once for all jobs

    # Without this, every job that ended would stay as a zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C in the terminal is for the app
    warm = False
    with socket.socket(fileno=handle) as door:
        while True:
            message, handles, _, _ = socket.recv_fds(door, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                door.close()
                _work(Connection(handles[0]))
                os._exit(0)
            os.close(handles[0])
            if not warm:
                # What torch loads at its first operations (a second), so that no later job must.
                # Forward only: backward starts threads on a CUDA build, and those don't fork.
                play(Choice("expression", "sim1", program="x", inputs="x = 1"), backward=False)
                warm = True


def _work(connection: Connection) -> None:
    global _connection
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        function, arguments, seconds = connection.recv()
    except (EOFError, ConnectionError):
        return
    # Ends even a call that never comes back to Python.
    signal.alarm(int(seconds) + 2)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    _connection = connection
    try:
        _limit()
        outcome = "result", function(*arguments)
    except BaseException as error:
        outcome = type(error).__name__, str(error)
    with contextlib.suppress(ConnectionError):
        connection.send(outcome)
    sys.stdout.flush()
    sys.stderr.flush()


def _end_with(connection: Connection) -> None:
    """The app sends nothing more: what can be read is the end of the connection."""
    connection.poll(None)
    os._exit(1)


def _limit() -> None:
    import torch

    # One core for each visitor: the threads of several jobs that wait for each other spin.
    torch.set_num_threads(1)
    statm = Path("/proc/self/statm")  # Linux; elsewhere only the time is limited
    # A CUDA context maps far more addresses than it uses.
    if statm.exists() and not torch.cuda.is_available():
        held = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (held + MAX_BYTES, held + MAX_BYTES))
