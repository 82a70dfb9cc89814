"""`app`: the app, from an installed package or a checkout; with a recording, or a script that runs.

The script runs as `graphviz-torch run` runs it: in a process of its own, as whoever gave the
command. The app opens when the first step is recorded, reads the file that grows, and runs nothing
of it. A signal that ends the command (SIGTERM, and SIGHUP, where it is not ignored) ends what it
started, and no file stays.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn
from urllib.request import urlopen

from .files import say
from .lifeline import remove_leftovers, start, temporary_folder
from .run import add_compiled, add_simulate

_PACKAGE = Path(__file__).parents[2]
_PATIENCE = 10  # seconds in which a process that is told to end has ended
_SCREENS = {"BROWSER", "DISPLAY", "WAYLAND_DISPLAY"}  # variables that tell of a graphical browser
_INTERRUPTED = 2  # seconds in which a process that Ctrl-C has reached has ended
_LOOK = 0.1  # seconds between two looks at what runs
RECORDING = "GRAPHVIZ_TORCH_RECORDING"  # the variable with the file that the app opens
LIVE = "GRAPHVIZ_TORCH_LIVE"  # the variable that is set where a script writes to that file
STOP = "stop"  # the file beside the recording with which the app asks for the script's end
ENDED = "ended"  # the file beside it that has the script's exit code


def add_app(parser: argparse.ArgumentParser) -> None:
    """Arguments of `app`."""
    parser.usage = "graphviz-torch app [options] [[-m] SCRIPT [ARGS ...]]"
    parser.add_argument("--port", type=int, default=8501, metavar="N", help="default 8501")
    how = argparse.BooleanOptionalAction
    parser.add_argument("--browser", action=how, default=True, help="open a browser")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    add_compiled(parser)
    add_simulate(parser)
    says = "a script to run, as `run` does, or a recording (.json, .json.gz) to open"
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help=says)
    says = "what the script is given"
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help=says)
    parser.set_defaults(run=_app)


def app_file() -> Path:
    """The app's first file: inside the installed package, or beside it in a checkout.

    Raises:
        FileNotFoundError: if it is in neither.
    """
    for path in (_PACKAGE / "_app" / "app" / "main.py", _PACKAGE.parent / "app" / "main.py"):
        if path.is_file():
            return path
    raise FileNotFoundError("the app is not installed with this package: reinstall graphviz-torch.")


def _app(parsed: argparse.Namespace) -> int:
    if not 0 < parsed.port < 65536:
        raise ValueError(f"--port {parsed.port}: pass a number from 1 to 65535.")
    if find_spec("streamlit") is None:
        raise ImportError(
            "the app needs Python 3.11 and Streamlit: pip install 'graphviz-torch[app]'."
        )
    file = app_file()
    remove_leftovers()
    with _ended_by_signals(), suppress(KeyboardInterrupt):  # Ctrl-C has ended what it started
        if parsed.script is None:
            return _serve(file, parsed, {})
        if parsed.script.endswith((".json", ".json.gz")):
            recording = Path(parsed.script).resolve(strict=True)
            return _serve(file, parsed, {RECORDING: str(recording)})
        with temporary_folder() as folder:
            recording = Path(folder) / f"{Path(parsed.script).name}.json.gz"
            with _ending(_start(parsed, recording)) as script:
                _await_step(script, recording, parsed.script)
                return _serve(file, parsed, {RECORDING: str(recording), LIVE: "1"}, script)
    return 0


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The first signal that ends a process raises `SystemExit`; those after it change nothing."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in (getattr(signal, n) for n in names)}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def end(number: int, _: Any) -> NoReturn:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    try:
        for number in heard:
            signal.signal(number, end)
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _end(process: subprocess.Popen[bytes], *, by: int = signal.SIGTERM) -> None:
    """End a process and wait for its end; kill it after `_PATIENCE` seconds."""
    with suppress(ProcessLookupError):  # it has ended
        process.send_signal(by)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE)
    process.kill()


@contextmanager
def _ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End the process where the block is left; Ctrl-C has reached it too, or does now."""
    try:
        yield process
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_INTERRUPTED)
        if process.poll() is None:  # the signal was sent to this process alone
            _end(process, by=signal.SIGINT)
        raise
    finally:
        if process.poll() is None:
            _end(process)
        process.wait()


def _start(parsed: argparse.Namespace, recording: Path) -> subprocess.Popen[bytes]:
    """Start the script, whose steps are recorded into a file that grows.

    Raises:
        FileNotFoundError: if there is no such script.
    """
    if not parsed.module and not Path(parsed.script).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), parsed.script)
    command = ["run", "-o", str(recording)]
    command += ["--compiled", parsed.compiled, "--no-hint", "--steps", "0", "--thinned"]
    if parsed.simulate is not None:
        command += ["--simulate", str(parsed.simulate)]
    command += [*["-m"] * parsed.module, parsed.script, *parsed.args]
    said = f"graphviz-torch: {parsed.script} runs; the app opens when it has recorded a step."
    say(said, file=sys.stderr)
    return start("graphviz_torch", command, str(recording.parent))


def _await_step(script: subprocess.Popen[bytes], recording: Path, name: str) -> None:
    """Wait until the first step is recorded.

    Raises:
        RuntimeError: if the script ends without one.
    """
    while not recording.exists():
        if script.poll() is None:
            time.sleep(_LOOK)
        elif not recording.exists():
            raise RuntimeError(
                f"{name} ended with exit code {script.returncode} and recorded no step, so there "
                "is nothing to open: a step is a backward."
            )


def _attend(
    server: subprocess.Popen[bytes], script: subprocess.Popen[bytes] | None, recording: Path
) -> int:
    """Wait for the end of the server, and return its exit code.

    Meanwhile the script is ended if the app asks for it, and the app learns that it has ended.
    """
    while script is not None and server.poll() is None:
        if script.poll() is not None:
            recording.with_name(ENDED).write_text(str(script.returncode))
            break
        if recording.with_name(STOP).exists():
            # As Ctrl-C, where there is such a signal: the script may save what it has.
            _end(script, by=signal.SIGINT if os.name == "posix" else signal.SIGTERM)
        time.sleep(_LOOK)
    return server.wait()


def _serve(
    file: Path,
    parsed: argparse.Namespace,
    environment: dict[str, str],
    script: subprocess.Popen[bytes] | None = None,
) -> int:
    options = {
        "server.address": "localhost",
        "server.port": parsed.port,
        "server.headless": "true",  # else cards of Streamlit's own may lie over the page
        "server.showEmailPrompt": "false",  # where Streamlit runs for the first time
        "browser.gatherUsageStats": "false",
    }
    command = ["run", str(file)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    folder = str(Path(environment[RECORDING]).parent) if LIVE in environment else ""
    with _ending(start("streamlit", command, folder, os.environ | environment)) as server:
        if parsed.browser:
            given = f"http://localhost:{parsed.port}", server
            threading.Thread(target=_open_when_ready, args=given, daemon=True).start()
        return _attend(server, script, Path(environment.get(RECORDING, "")))


def _open_when_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Open a browser once the server answers; not one that would run in this terminal."""
    if sys.platform == "linux" and not _SCREENS & os.environ.keys():
        return
    while server.poll() is None:
        try:
            urlopen(f"{url}/_stcore/health", timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            webbrowser.open(url)
            return
