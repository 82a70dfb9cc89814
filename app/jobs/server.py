"""The server that forks a process for each job, ends it from outside, and removes its files.

The app sends two sockets for a job: one for its messages, one for its life. When the app closes its
end of the second, the server kills the job and all that it started. When the job is dead and its
folder is removed, the server closes its own end: that is how the app knows. Before that it sends
`SPENT` where the job's time was over.
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

MAX_BYTES = 3 << 30  # that a job may allocate beyond what the server has; CPU memory
WAIT = 10  # times its limit of computing may pass before a job has a result
SPENT = b"x"
MAX_RESULT = 128 << 20  # bytes of what a job gives back
MAX_MESSAGE = 2_000  # characters of an error

_PATH = re.compile(r"(?<![\w.])(?:/[^\s/'\":,()\[\]]+)+/([^\s/'\":,()\[\]]*)")
_connection: Connection | None = None  # in a job's process: the way to the app


def report(value: Any) -> None:
    """Inside a job: hand a value to whoever waits for it. Outside a job it does nothing."""
    if _connection is not None:
        _connection.send_bytes(pickle.dumps(("report", value)))


@dataclass(frozen=True)
class _Child:
    """A job's process, seen from the server."""

    life: socket.socket
    folder: Path


class _Server:
    """The processes that are alive, by their ids."""

    def __init__(self, door: socket.socket, folder: Path) -> None:
        self.door, self.folder = door, folder
        self.children: dict[int, _Child] = {}
        self.reading, self.writing = os.pipe()  # it ends with this process, however that ends
        self.selector = selectors.DefaultSelector()
        self.woken, waker = socket.socketpair()
        for end in (self.woken, waker):
            end.setblocking(False)
        self.waker = waker
        signal.set_wakeup_fd(waker.fileno())  # a byte comes for each process that ended
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(door, selectors.EVENT_READ)
        self.selector.register(self.woken, selectors.EVENT_READ)

    def run(self) -> None:
        """Until the app closes the door."""
        warm = False
        if not self.selector.select(0):  # nobody waits yet
            warm = self.warm_up()
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.door:
                    if not self.admit():
                        return
                    warm = warm or self.warm_up()
                elif key.fileobj is self.woken:
                    with contextlib.suppress(BlockingIOError):
                        self.woken.recv(4096)
                    self.reap()
                elif key.data in self.children:
                    self.kill(key.data)

    def warm_up(self) -> bool:
        """Load now what later jobs would load, each for itself."""
        import_module(".backward", __package__).warm_up()
        return True

    def admit(self) -> bool:
        """Fork for the next pair of sockets; False once there is none."""
        message, handles, _, _ = socket.recv_fds(self.door, 1, 2)
        if not message:
            return False
        folder = Path(tempfile.mkdtemp(prefix="job-", dir=self.folder))
        life = socket.socket(fileno=handles[1])
        process = os.fork()
        if process == 0:
            self.forget(life)
            os.close(self.writing)
            threading.Thread(target=_end_with, args=(self.reading, folder), daemon=True).start()
            _work(Connection(handles[0]), folder)
            os._exit(0)
        with contextlib.suppress(OSError):  # the job does the same: whoever comes first
            os.setpgid(process, process)
        os.close(handles[0])
        self.children[process] = _Child(life, folder)
        self.selector.register(life, selectors.EVENT_READ, process)
        return True

    def forget(self, life: socket.socket) -> None:
        """In a job: close what is the server's, the ends of other jobs' sockets too."""
        os.setpgid(0, 0)  # so that what the job starts ends with it
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        self.selector.close()
        ends = [self.door, self.woken, self.waker, life]
        for end in [*ends, *(child.life for child in self.children.values())]:
            end.close()

    def kill(self, process: int) -> None:
        """End a job and all that it started."""
        with contextlib.suppress(OSError):
            os.killpg(process, signal.SIGKILL)
        self.selector.unregister(self.children[process].life)
        self.reap()

    def reap(self) -> None:
        """Remove the folders of the jobs that ended, and tell the app."""
        for process, child in list(self.children.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                continue
            with contextlib.suppress(OSError):  # what it started and left behind
                os.killpg(process, signal.SIGKILL)
            shutil.rmtree(child.folder, ignore_errors=True)
            with contextlib.suppress(KeyError):
                self.selector.unregister(child.life)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
                with contextlib.suppress(OSError):  # the app has left
                    child.life.send(SPENT)
            child.life.close()
            del self.children[process]

    def close(self) -> None:
        """Kill all that are alive."""
        for process in list(self.children):
            with contextlib.suppress(OSError):
                os.killpg(process, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def serve(handle: int, folder: str) -> None:
    """Fork for each pair of sockets that comes in; end when the app does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the app, with which this process ends
    import_module(".backward", __package__)  # loads torch, once for all jobs
    with socket.socket(fileno=handle) as door:
        server = _Server(door, Path(folder))
        try:
            server.run()
        finally:
            server.close()


def _end_with(handle: int, folder: Path) -> None:
    """In a job: wait for the end of the server; then remove the job's folder and end the job."""
    os.read(handle, 1)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # the last job removes the server's folder
        folder.parent.rmdir()
    os.killpg(0, signal.SIGKILL)


def _work(connection: Connection, folder: Path) -> None:
    global _connection
    try:
        name, arguments, seconds = pickle.loads(connection.recv_bytes())
        connection.send_bytes(pickle.dumps(("begun", None)))
    except (EOFError, ConnectionError):
        return
    # The server kills a job in time; this is for a job whose server died.
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
        # A path of the server is nobody's business: the file's name alone is left.
        text = _PATH.sub(r"\1", str(error).replace(f"{folder}/", ""))[:MAX_MESSAGE]
        message = pickle.dumps(("error", (type(error).__name__, text)))
    with contextlib.suppress(ConnectionError):
        connection.send_bytes(message)
    sys.stdout.flush()
    sys.stderr.flush()


def _limit(seconds: int) -> None:
    import torch

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # then SIGXCPU ends it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # One core for each visitor: the threads of several jobs that wait for each other spin.
    torch.set_num_threads(1)
    statm = Path("/proc/self/statm")  # Linux; on other systems memory has no limit
    # A CUDA context maps far more addresses than it uses.
    if statm.exists() and not torch.cuda.is_available():
        used = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, used + MAX_BYTES))
