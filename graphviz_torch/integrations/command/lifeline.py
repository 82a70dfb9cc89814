"""Start child processes and create temporary folders that do not outlive the command.

The child process has the read end of a pipe, and only the command's process has the write end. When
the command ends, even by SIGKILL, the pipe is closed. The child then removes the command's
temporary folder and ends. If a folder is left over, the next `app` or `view` command removes it.

The child runs this module, which waits for the pipe in a thread while it runs another module:

    python -m graphviz_torch.integrations.command.lifeline HANDLE FOLDER MODULE ARGS ...
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PREFIX = "graphviz_torch-"
_PAGE = f"{_PREFIX}page-"
_KILL_AFTER = 5  # seconds from SIGTERM to SIGKILL
_MAX_PAGE_AGE = 86_400  # seconds after which the page of a `view` command is removed
_write_ends: list[int] = []  # write ends of pipes, which stay open until this process ends


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a context manager for a temporary folder that has this process's id in its name."""
    return tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-")


def page_folder() -> Path:
    """Return a new folder for a page that a browser may read after this process has ended."""
    return Path(tempfile.mkdtemp(prefix=_PAGE))


def remove_leftovers() -> None:
    """Remove this user's temporary folders of processes that have ended, and pages after a day."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = folder.name[len(_PREFIX) :].partition("-")[0]
        with suppress(OSError):
            status = folder.lstat()
            is_mine = not hasattr(os, "getuid") or status.st_uid == os.getuid()
            old = folder.name.startswith(_PAGE) and time.time() - status.st_mtime > _MAX_PAGE_AGE
            if is_mine and (old or (owner.isdecimal() and not _is_alive(int(owner)))):
                shutil.rmtree(folder, ignore_errors=True)


def start(
    module: str, arguments: Sequence[str], folder: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a module in a child process that ends when this process ends.

    Args:
        module: name of the module to run, as by `python -m`.
        arguments: command-line arguments of the module.
        folder: the child removes this folder when this process ends. "" removes none.
        environment: environment variables of the child. None passes on those of this process.
    """
    if os.name != "posix":
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.Popen(command, env=environment)
    reading, writing = os.pipe()
    _write_ends.append(writing)
    command = [sys.executable, "-m", __name__, str(reading), folder, module, *arguments]
    try:
        return subprocess.Popen(command, env=environment, pass_fds=[reading])
    finally:
        os.close(reading)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        pass
    with suppress(
        OSError, IndexError
    ):  # a zombie (Z) has ended, but its parent has not waited for it
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def _watch(handle: int, folder: str) -> None:
    """Wait until the pipe is closed, then remove the folder and end this process."""
    with suppress(OSError):
        os.read(handle, 1)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_KILL_AFTER)
    os.kill(os.getpid(), signal.SIGKILL)


def _main() -> None:
    handle, folder, module, *arguments = sys.argv[1:]
    os.set_inheritable(int(handle), False)
    threading.Thread(target=_watch, args=(int(handle), folder), daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
