"""`graphviz-torch app`: start the app, with a saved recording or with a running script.

`graphviz-torch run` runs the script in a separate process with the user's rights, and appends each
recorded step to a file. The app opens after the first recorded step and reads this file; nothing in
the file is executed. SIGTERM and SIGHUP, unless the process ignores them, end both processes, and
temporary files are removed.
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
_KILL_AFTER = 10  # seconds from SIGTERM to SIGKILL
# On Linux, at least one of these environment variables is set if a browser can be opened.
_SCREENS = {"BROWSER", "DISPLAY", "WAYLAND_DISPLAY"}
_CTRL_C_WAIT = 2  # seconds that a process has to end by itself after Ctrl-C
_POLL_SECONDS = 0.1
RECORDING = "GRAPHVIZ_TORCH_RECORDING"  # environment variable: path of the file that the app opens
LIVE = "GRAPHVIZ_TORCH_LIVE"  # environment variable: set if a script is writing this file
STOP = "stop"  # name of a file that the app creates to end the script
ENDED = "ended"  # name of a file to which the exit code of the script is written


def add_app(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `app`."""
    parser.usage = "graphviz-torch app [options] [[-m] SCRIPT [ARGS ...]]"
    parser.add_argument("--port", type=int, default=8501, metavar="N", help="default 8501")
    how = argparse.BooleanOptionalAction
    parser.add_argument("--browser", action=how, default=True, help="open a browser")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    add_compiled(parser)
    add_simulate(parser)
    text = "a script to run and record, or a recording to open (.json, .json.gz)"
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help=text)
    text = "arguments of the script"
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help=text)
    parser.set_defaults(run=_app)


def app_file() -> Path:
    """Return the path of the app's `main.py`, in the installed package or in the checkout.

    Raises:
        FileNotFoundError: if neither contains the app.
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
    with _exit_on_signals(), suppress(KeyboardInterrupt):  # Ctrl-C is the usual end
        if parsed.script is None:
            return _serve(file, parsed, {})
        if parsed.script.endswith((".json", ".json.gz")):
            recording = Path(parsed.script).resolve(strict=True)
            return _serve(file, parsed, {RECORDING: str(recording)})
        with temporary_folder() as folder:
            recording = Path(folder) / f"{Path(parsed.script).name}.json.gz"
            with _terminated_after(_start(parsed, recording)) as script:
                _await_step(script, recording, parsed.script)
                return _serve(file, parsed, {RECORDING: str(recording), LIVE: "1"}, script)
    return 0


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Raise `SystemExit` on the first SIGTERM or SIGHUP, and ignore later ones."""
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


def _terminate(process: subprocess.Popen[bytes], *, by: int = signal.SIGTERM) -> None:
    """Send the signal `by` to a process and wait for its end; kill it after `_KILL_AFTER` s."""
    with suppress(ProcessLookupError):  # the process has ended already
        process.send_signal(by)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_AFTER)
    process.kill()


@contextmanager
def _terminated_after(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Terminate the process at the end of the `with` block.

    On Ctrl-C the terminal usually sends SIGINT to the child as well. Therefore the child gets
    `_CTRL_C_WAIT` seconds to end by itself.
    """
    try:
        yield process
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_CTRL_C_WAIT)
        if process.poll() is None:  # the terminal did not send SIGINT to the child
            _terminate(process, by=signal.SIGINT)
        raise
    finally:
        if process.poll() is None:
            _terminate(process)
        process.wait()


def _start(parsed: argparse.Namespace, recording: Path) -> subprocess.Popen[bytes]:
    """Start the script in a process that appends each recorded step to a file.

    Raises:
        FileNotFoundError: if the script does not exist.
    """
    if not parsed.module and not Path(parsed.script).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), parsed.script)
    command = ["run", "-o", str(recording)]
    command += ["--compiled", parsed.compiled, "--no-hint", "--steps", "0", "--thinned"]
    if parsed.simulate is not None:
        command += ["--simulate", str(parsed.simulate)]
    command += [*["-m"] * parsed.module, parsed.script, *parsed.args]
    text = f"graphviz-torch: {parsed.script} runs; the app opens after the first recorded step."
    say(text, file=sys.stderr)
    return start("graphviz_torch", command, str(recording.parent))


def _await_step(script: subprocess.Popen[bytes], recording: Path, name: str) -> None:
    """Wait until the script has recorded its first step.

    Raises:
        RuntimeError: if the script ends before that.
    """
    while not recording.exists():
        if script.poll() is None:
            time.sleep(_POLL_SECONDS)
        elif not recording.exists():
            raise RuntimeError(
                f"{name} ended with exit code {script.returncode} and recorded no step, so there "
                "is nothing to open. A step is recorded when backward() runs."
            )


def _wait_for_server(
    server: subprocess.Popen[bytes], script: subprocess.Popen[bytes] | None, recording: Path
) -> int:
    """Wait until the app's server ends, and return the server's exit code.

    While waiting, end the script if the app creates the file `STOP`. When the script ends, write
    the script's exit code to the file `ENDED`.
    """
    while script is not None and server.poll() is None:
        if script.poll() is not None:
            recording.with_name(ENDED).write_text(str(script.returncode))
            break
        if recording.with_name(STOP).exists():
            # Ctrl-C sends SIGINT, which the script can catch to save its state.
            _terminate(script, by=signal.SIGINT if os.name == "posix" else signal.SIGTERM)
        time.sleep(_POLL_SECONDS)
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
        "server.headless": "true",  # otherwise Streamlit opens a browser itself
        "server.showEmailPrompt": "false",  # no prompt at the first start
        "browser.gatherUsageStats": "false",
    }
    command = ["run", str(file)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    folder = str(Path(environment[RECORDING]).parent) if LIVE in environment else ""
    with _terminated_after(start("streamlit", command, folder, os.environ | environment)) as server:
        if parsed.browser:
            given = f"http://localhost:{parsed.port}", server
            threading.Thread(target=_open_when_ready, args=given, daemon=True).start()
        return _wait_for_server(server, script, Path(environment.get(RECORDING, "")))


def _open_when_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Open a browser once the server answers, but only if a graphical browser is available."""
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
