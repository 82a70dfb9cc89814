"""Run scripts and modules in forks of a process that has already imported all slow modules.

A new process needs three seconds to import torch and the modules that its first optimizer loads. A
fork has these modules already. It differs from a `python` process in two ways only: modules are
already imported, and there are frames below those of the program. Tests of imports and of the
lowest frames therefore start a new process.

All workers of a test run share that process: the first worker that needs a fork starts it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TextIO

import torch.distributed as dist

LOADED = (
    *("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"),
    *("torch.testing._internal.distributed.fake_pg", "graphviz_torch.rehearsal"),
    "graphviz_torch.integrations.command.main",
)
LIMIT = 600  # seconds until a fork is ended; a test is ended after 900


def forked(
    *arguments: str | Path, folder: Path, ranks: int = 0
) -> subprocess.CompletedProcess[str]:
    """Return the result of `python` with these arguments: first a path, or `-m` and a module.

    Args:
        arguments: the arguments after `python` on the command line.
        folder: the working directory.
        ranks: number of processes that run the program, as with `torchrun`; 0 runs it without
            `torchrun`.
    """
    words = [str(argument) for argument in arguments]
    if not hasattr(os, "fork"):
        torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        command = [sys.executable, *(torchrun if ranks else ()), *words]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    server = _server()
    with tempfile.TemporaryDirectory() as beside:
        places = [Path(beside, str(rank)) for rank in range(ranks)] or [Path(beside)]
        variables, store = _ranks(ranks) if ranks else ([{}], None)
        processes = []
        for rank, place in zip(variables, places, strict=True):
            place.mkdir(exist_ok=True)
            env = {**os.environ, **rank}
            processes.append({"words": words, "folder": str(folder), "out": str(place), "env": env})
        print(json.dumps(processes), file=server, flush=True)
        code = int(server.readline())
        del store
        out, err = ("".join((p / name).read_text("utf-8") for p in places) for name in ("1", "2"))
    return subprocess.CompletedProcess(words, code, out, err)


def _ranks(count: int) -> tuple[list[dict[str, str]], dist.TCPStore]:
    """Return the environment variables of each rank and the ranks' store, as `torchrun` sets."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    alike = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    alike |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}  # the store outlives the ranks
    alike |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [{**alike, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)], store


@cache
def _server() -> TextIO:
    """Connect to the server of forks, which is started if it does not run."""
    import fcntl  # missing on Windows

    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    address = Path(tempfile.gettempdir(), f"graphviz-torch-forks-{run[:8]}")
    connection = socket.socket(socket.AF_UNIX)
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(address))
        except OSError:
            _start(address)
            connection.connect(str(address))
    return connection.makefile("rw")


def _start(address: Path) -> None:
    """Start the server of forks. It ends after the last process that is connected to it."""
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as connections:
        connections.bind(str(address))
        connections.listen()
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(connections.fileno())],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[connections.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # threads do not survive a fork
        )


def serve(connections: socket.socket) -> None:
    """Serve each connection in a fork, until all are closed. Returns in each fork, too."""
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise a fork that ends visits a million objects
    serving = -1  # until the first connection
    while serving:
        if select.select([connections], [], [], 1)[0]:
            connection, _ = connections.accept()
            if not os.fork():
                connections.close()
                return fork_for(connection.makefile("rw"))
            connection.close()
            serving = max(serving, 0) + 1
        while serving > 0 and os.waitpid(-1, os.WNOHANG)[0]:
            serving -= 1
    Path(connections.getsockname()).unlink()


def fork_for(worker: TextIO) -> None:
    """Fork the processes of each line, and answer how they ended. Returns in a fork, too."""
    for line in worker:
        children = set()
        for process in json.loads(line):
            child = os.fork()
            if not child:
                signal.alarm(LIMIT)  # ends ranks that wait for each other
                # A shell that starts the tests in the background makes them ignore Ctrl-C.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                return run(**process)
            children.add(child)
        print(ended(children), file=worker, flush=True)


def ended(children: set[int]) -> int:
    """Wait for all forks, and return their first nonzero exit code, or 0.

    When a fork fails, the other forks are terminated.
    """
    code = 0
    while children:
        child, status = os.wait()
        children.discard(child)
        if status and not code:
            code = os.waitstatus_to_exitcode(status)
            for other in children:
                os.kill(other, signal.SIGTERM)
    return code


def run(words: list[str], folder: str, out: str, env: dict[str, str]) -> None:
    """Run a program in this process, as `python` does."""
    os.environ.clear()
    os.environ.update(env)
    for number in (1, 2):
        os.dup2(os.open(f"{out}/{number}", os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    os.chdir(folder)
    sys.path.append(sys.path.pop(0))  # the checkout comes last, like an installed package
    main, code = ModuleType("__main__"), None
    try:
        if words[0] == "-m":
            sys.path.insert(0, folder)
            sys.argv = ["-m", *words[2:]]  # as Python has it while it imports the package
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            path = Path(words[0]).absolute()
            sys.path.insert(0, str(path.resolve().parent))
            sys.argv = words
            sys.excepthook = _show_frames_of_the_program
            sys.modules["__main__"] = main
            main.__file__ = str(path)
            exec(compile(path.read_bytes(), path, "exec"), vars(main))
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code
    _end(main, code or 0)


def _end(main: ModuleType, code: int) -> None:
    """End this process as Python does, but leave the imported modules to the operating system.

    Python frees each of their objects, which takes 0.2 s and copies most of the memory.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    vars(main).clear()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # it is None or closed
            stream.flush()
    os._exit(code & 0xFF)


def _show_frames_of_the_program(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Show an exception as Python does, without the frames of this file."""
    below = {__file__, runpy.run_module.__code__.co_filename}
    while traceback is not None and traceback.tb_frame.f_code.co_filename in below:
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
