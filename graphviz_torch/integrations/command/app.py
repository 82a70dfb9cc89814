"""`app`: the app, from an installed package or a checkout; with a recording, or a script run first.

The script runs as `graphviz-torch run` runs it: in a process of its own, as whoever gave the
command. The app then reads the file that it recorded, and runs nothing of it. A signal that ends
the command (SIGTERM, and SIGHUP, where it is not ignored) ends what it started, and no file stays.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn
from urllib.request import urlopen

from .run import add_compiled, add_simulate

_PACKAGE = Path(__file__).parents[2]
_PATIENCE = 10  # seconds in which a process that is told to end has ended
_SCREENS = {"BROWSER", "DISPLAY", "WAYLAND_DISPLAY"}  # variables that tell of a graphical browser
RECORDING = "GRAPHVIZ_TORCH_RECORDING"  # the variable that tells the app which file to open


def add_app(parser: argparse.ArgumentParser) -> None:
    """Arguments of `app`."""
    parser.usage = "graphviz-torch app [options] [[-m] SCRIPT [ARGS ...]]"
    parser.add_argument("--port", type=int, default=8501, metavar="N", help="default 8501")
    how = argparse.BooleanOptionalAction
    parser.add_argument("--browser", action=how, default=True, help="open a browser")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    add_compiled(parser)
    add_simulate(parser)
    says = "a script to run first, as `run` does, or a recording (.json, .json.gz) to open"
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
    with _ended_by_signals():
        if parsed.script is None:
            return _serve(file, parsed, {})
        if parsed.script.endswith((".json", ".json.gz")):
            recording = Path(parsed.script).resolve(strict=True)
            return _serve(file, parsed, {RECORDING: str(recording)})
        with tempfile.TemporaryDirectory(prefix="graphviz_torch-") as folder:
            recording = _record(parsed, Path(folder))
            return _serve(file, parsed, {RECORDING: str(recording)})


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


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Its exit code; where this process is to end, that one ends before."""
    try:
        return process.wait()
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):  # Ctrl-C has told it
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        process.kill()
        raise


def _record(parsed: argparse.Namespace, folder: Path) -> Path:
    """Run the script, and return the file of its last recorded step.

    Raises:
        RuntimeError: if it recorded nothing.
    """
    recording = folder / f"{Path(parsed.script).name}.json.gz"
    command = [sys.executable, "-m", "graphviz_torch", "run", "-o", str(recording)]
    command += ["--compiled", parsed.compiled, "--no-hint"]
    if parsed.simulate is not None:
        command += ["--simulate", str(parsed.simulate)]
    command += [*["-m"] * parsed.module, parsed.script, *parsed.args]
    said = f"graphviz-torch: {parsed.script} runs; the app opens when it has ended. Ctrl-C ends it."
    print(said, file=sys.stderr, flush=True)
    with subprocess.Popen(command) as script:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the script
        try:
            code = _wait(script)
        finally:
            signal.signal(signal.SIGINT, before)
    if not recording.exists():
        raise RuntimeError(
            f"{parsed.script} ended with exit code {code} and recorded no step, so there is "
            "nothing to open: a step is a backward."
        )
    return recording


def _serve(file: Path, parsed: argparse.Namespace, environment: dict[str, str]) -> int:
    options = {
        "server.address": "localhost",
        "server.port": parsed.port,
        "server.headless": "true",  # else cards of Streamlit's own may lie over the page
        "server.showEmailPrompt": "false",  # where Streamlit runs for the first time
        "browser.gatherUsageStats": "false",
    }
    command = [sys.executable, "-m", "streamlit", "run", str(file)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    try:
        with subprocess.Popen(command, env=os.environ | environment) as server:
            if parsed.browser:
                given = f"http://localhost:{parsed.port}", server
                threading.Thread(target=_open_when_ready, args=given, daemon=True).start()
            return _wait(server)
    except KeyboardInterrupt:  # Ctrl-C has ended the app too
        return 0


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
