"""The server that forks a process for each job, kills jobs on request, and removes their files.

For each job, the app sends two sockets: one for messages, and one that represents the job's
lifetime.

When the app closes its end of the lifetime socket, the server kills the job and its child
processes. When the job has ended and its folder is removed, the server closes its own end of this
socket, which notifies the app. If the job exceeded its time limit, the server sends `SPENT` before
it closes the socket.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import resource
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MAX_BYTES = 3 << 30  # bytes that a job may allocate in addition to the server's memory
WAIT = 10  # largest wall-clock time of a job, as a multiple of its CPU time limit
SPENT = b"x"
MAX_RESULT = 128 << 20  # largest result of a job in bytes
MAX_MESSAGE = 2_000  # largest number of characters in an error message

_PATH = re.compile(r"(?<![\w.])(?:/[^\s/'\":,()\[\]]+)+/([^\s/'\":,()\[\]]*)")
_connection: Connection | None = None  # in a job's process: the connection to the app


def report(value: Any) -> None:
    """Send a value from a job to the app. Outside of a job, this does nothing."""
    if _connection is not None:
        _connection.send_bytes(pickle.dumps(("report", value)))


@dataclass(frozen=True)
class _Child:
    """The server's data about the process of a job."""

    life: socket.socket
    folder: Path


class _JobServer:
    """An event loop that forks, kills and reaps the processes of jobs."""

    def __init__(self, requests: socket.socket, folder: Path) -> None:
        self.requests, self.folder = requests, folder
        self.children: dict[int, _Child] = {}  # by process id
        self.reading, self.writing = os.pipe()  # the kernel closes this pipe when the server ends
        self.selector = selectors.DefaultSelector()
        self.woken, waker = socket.socketpair()
        for end in (self.woken, waker):
            end.setblocking(False)
        self.waker = waker
        signal.set_wakeup_fd(waker.fileno())  # gets a byte when a process ends
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(requests, selectors.EVENT_READ)
        self.selector.register(self.woken, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the app closes its end of the request socket."""
        backward = import_module(".backward", __package__)
        backward.warm_up()
        has_compiler = False
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.requests:
                    if not self.admit():
                        return
                elif key.fileobj is self.woken:
                    with contextlib.suppress(BlockingIOError):
                        self.woken.recv(4096)
                    self.reap()
                    if not self.children and not has_compiler:
                        # The import takes a second, so do it while the visitor reads the first
                        # result.
                        backward.import_compiler()
                        has_compiler = True
                elif key.data in self.children:
                    self.kill(key.data)

    def admit(self) -> bool:
        """Fork a process for the next pair of sockets. Return False if the app has ended."""
        message, handles, _, _ = socket.recv_fds(self.requests, 1, 2)
        if not message:
            return False
        folder = Path(tempfile.mkdtemp(prefix="job-", dir=self.folder))
        life = socket.socket(fileno=handles[1])
        process = os.fork()
        if process == 0:
            self.close_inherited(life)
            os.close(self.writing)
            threading.Thread(target=_end_with, args=(self.reading, folder), daemon=True).start()
            _work(Connection(handles[0]), folder)
            os._exit(0)
        # Both the server and the job set the job's process group, because either may run first.
        with contextlib.suppress(OSError):
            os.setpgid(process, process)
        os.close(handles[0])
        self.children[process] = _Child(life, folder)
        self.selector.register(life, selectors.EVENT_READ, process)
        return True

    def close_inherited(self, life: socket.socket) -> None:
        """In the process of a job, close the server's sockets and remove its signal handlers."""
        os.setpgid(0, 0)  # child processes are killed with the group
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        self.selector.close()
        ends = [self.requests, self.woken, self.waker, life]
        for end in [*ends, *(child.life for child in self.children.values())]:
            end.close()

    def kill(self, process: int) -> None:
        """Kill a job and its child processes."""
        with contextlib.suppress(OSError):
            os.killpg(process, signal.SIGKILL)
        self.selector.unregister(self.children[process].life)
        self.reap()

    def reap(self) -> None:
        """Remove the folders of jobs that have ended, and notify the app."""
        for process, child in list(self.children.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                continue
            with contextlib.suppress(OSError):  # kills child processes that the job left running
                os.killpg(process, signal.SIGKILL)
            shutil.rmtree(child.folder, ignore_errors=True)
            with contextlib.suppress(KeyError):
                self.selector.unregister(child.life)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
                with contextlib.suppress(OSError):  # raised if the app has closed its end
                    child.life.send(SPENT)
            child.life.close()
            del self.children[process]

    def close(self) -> None:
        """Kill all jobs and remove the server's folder."""
        for process in list(self.children):
            with contextlib.suppress(OSError):
                os.killpg(process, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def serve(handle: int, folder: str) -> None:
    """Run the server: fork a process for each pair of sockets, and return when the app ends.

    Args:
        handle: file descriptor of the socket to the app.
        folder: the folder that contains the folders of jobs.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the app handles these signals and ends this process
    import_module(".backward", __package__)  # imports torch, once for all jobs
    with socket.socket(fileno=handle) as requests:
        server = _JobServer(requests, Path(folder))
        try:
            server.run()
        finally:
            server.close()


def _end_with(handle: int, folder: Path) -> None:
    """In a job's process, wait until the server ends, then remove the folder and kill the job."""
    os.read(handle, 1)
    shutil.rmtree(folder, ignore_errors=True)
    # The server's folder is empty, and is removed, only after the last job has ended.
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
    os.killpg(0, signal.SIGKILL)


def _work(connection: Connection, folder: Path) -> None:
    global _connection
    try:
        name, arguments, seconds = pickle.loads(connection.recv_bytes())
        connection.send_bytes(pickle.dumps(("begun", None)))
    except (EOFError, ConnectionError):
        return
    # The server enforces the limit. The alarm ends a job whose server has died.
    signal.alarm(int(WAIT * seconds) + 2)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    _connection = connection
    outcome: tuple[str, Any]
    try:
        _limit(math.ceil(seconds))
        module, _, function = name.partition(":")
        outcome = "result", getattr(import_module(module), function)(*arguments)
        message = pickle.dumps(outcome)
        if len(message) > MAX_RESULT:
            text = f"The result has {len(message) >> 20:,} MiB: at most {MAX_RESULT >> 20} MiB."
            message = pickle.dumps(("error", ("ValueError", text)))
    except BaseException as error:
        # Visitors must not see the server's paths, so only file names are kept.
        text = _PATH.sub(r"\1", str(error).replace(f"{folder}/", ""))[:MAX_MESSAGE]
        message = pickle.dumps(("error", (type(error).__name__, text)))
    with contextlib.suppress(ConnectionError):
        connection.send_bytes(message)
    sys.stdout.flush()
    sys.stderr.flush()


def _limit(seconds: int) -> None:
    import torch

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # SIGXCPU is sent at the limit
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Use one thread per job, because waiting OpenMP threads would occupy all cores.
    torch.set_num_threads(1)
    statm = Path("/proc/self/statm")  # exists only on Linux; other systems get no limit
    # With CUDA there is no limit: a CUDA context maps far more addresses than it uses.
    if statm.exists() and not torch.cuda.is_available():
        used = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, used + MAX_BYTES))
