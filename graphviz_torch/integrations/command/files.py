"""Read and write the files named on the command line; the name "-" means stdin or stdout."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ... import Graph, load
from ...graph import Training, TrainingStep
from ...graph.files.replacement import replacement
from ...graph.text import printable

PIPE = Path("-")

_RED, _GREEN, _YELLOW, _BLUE = 31, 32, 33, 34
# Regular expression -> ANSI color of the text that it matches in a report.
SEVERITIES = {
    r"✖ [\w-]+|^error\b(\[[\w-]+\])?": _RED,
    r"⚠ [\w-]+|^warning\b(\[[\w-]+\])?": _YELLOW,
    r"\N{INFORMATION SOURCE} [\w-]+|^info\b(\[[\w-]+\])?": _BLUE,
    r"^ *\d* *(\||-->|:::|= help:|= note:)": _BLUE,
    r"\^+": _YELLOW,
}
DIFFERENCES = {r"^ *\+ .*": _GREEN, r"^ *- .*": _RED, r"^ *~ .*": _YELLOW}


def read_saved(path: Path) -> Graph | Training | TrainingStep:
    """Load a graph or training from a file or stdin; "run.json.gz@10" loads step 10 of a training.

    Raises:
        ValueError: if the file is a script, is not a saved graph, or does not contain the step.
        OSError: if the file cannot be read.
    """
    if path.suffix == ".py" and path.exists():
        recorded = f"graphviz-torch run -o run.json.gz {path}"
        raise ValueError(f"{path} is a script: record it first with {recorded}")
    if (file := on_disk(path)) != path:
        return load(file, step=int(path.name.rpartition("@")[2]))
    if path != PIPE:
        return load(path)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "stdin"
        with copy.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        try:
            return load(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), "stdin")) from None


def on_disk(path: Path) -> Path:
    """Return the file's path without a step number: "run.json.gz" for "run.json.gz@10"."""
    name, mark, number = path.name.rpartition("@")
    return path.with_name(name) if mark and number.isdecimal() and not path.exists() else path


def write_text(text: str, path: Path) -> None:
    """Write text to a file and print its name, or write text to stdout if `path` is "-"."""
    if path == PIPE:
        sys.stdout.write(text)
    else:
        with replacement(path) as file:
            file.write(text.encode())
        say(str(path))


def default_output(file: Path, suffix: str) -> Path:
    """Return the path in the same folder with `suffix` in place of ".json" or ".json.gz".

    "run.json.gz@10" becomes "run@10" with the suffix. For stdin the result is "-", stdout.
    """
    if file == PIPE:
        return PIPE
    return file.with_name(re.sub(r"(\.json)?(\.gz)?(?=(@\d+)?$)", "", file.name, count=1) + suffix)


def say(text: object, colors: Mapping[str, int] | None = None, file: TextIO | None = None) -> None:
    """Print a text with escaped control characters and, optionally, ANSI colors.

    If the reader of a pipe, such as a pager, closes the pipe, later output is discarded without an
    error.

    Args:
        text: the text, or an object whose `str` is printed.
        colors: as for `with_colors`. None prints without colors.
        file: the stream to print to. None prints to stdout.
    """
    out = file or sys.stdout
    shown = printable(str(text), lines=True)
    try:
        print(shown if colors is None else with_colors(shown, out, colors), file=out, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def with_colors(text: str, file: TextIO, colors: Mapping[str, int] = SEVERITIES) -> str:
    """Return the text with ANSI colors if `file` is a terminal, else unchanged.

    The environment variable FORCE_COLOR adds colors for other files, too; NO_COLOR removes them.

    Args:
        text: the text to color.
        file: the stream to which the text will be printed.
        colors: regular expressions, and the ANSI color number of the text that each matches.
    """
    # The old Windows console prints escape sequences as text.
    old = sys.platform == "win32" and "WT_SESSION" not in os.environ
    shows = file.isatty() and os.environ.get("TERM") != "dumb" and not old
    if os.environ.get("NO_COLOR") or not (shows or os.environ.get("FORCE_COLOR", "0") != "0"):
        return text
    for pattern, color in colors.items():
        text = re.sub(pattern, f"\x1b[{color}m\\g<0>\x1b[0m", text, flags=re.M)
    return text
