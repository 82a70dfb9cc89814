"""`app`: the app, from an installed package or a checkout."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


def add_app(parser: argparse.ArgumentParser) -> None:
    """Arguments of `app`."""
    parser.add_argument("--port", type=int, default=8501, metavar="N", help="default 8501")
    how = argparse.BooleanOptionalAction
    parser.add_argument("--browser", action=how, default=True, help="open a browser")
    parser.set_defaults(run=_app)


def app_file() -> Path:
    """The app's first file: inside the installed package, or beside it in a checkout.

    Raises:
        FileNotFoundError: if it is in neither.
    """
    for path in (_PACKAGE / "_app" / "app" / "server.py", _PACKAGE.parent / "app" / "server.py"):
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
    options = {
        "server.address": "localhost",
        "server.port": parsed.port,
        "server.headless": str(not parsed.browser).lower(),
        "server.showEmailPrompt": "false",  # where Streamlit runs for the first time
        "browser.gatherUsageStats": "false",
    }
    command = [sys.executable, "-m", "streamlit", "run", str(app_file())]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    try:
        return subprocess.call(command)
    except KeyboardInterrupt:  # Ctrl-C has ended the app too
        return 0
