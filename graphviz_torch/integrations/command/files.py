"""The files that a command reads and writes; "-" is what comes in and goes out."""

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
# Signs with the rule behind them, a severity that begins a line, and what stands around source.
SEVERITIES = {
    r"✖ [\w-]+|^error\b(\[[\w-]+\])?": _RED,
    r"⚠ [\w-]+|^warning\b(\[[\w-]+\])?": _YELLOW,
    r"\N{INFORMATION SOURCE} [\w-]+|^info\b(\[[\w-]+\])?": _BLUE,
    r"^ *\d* *(\||-->|:::|= help:|= note:)": _BLUE,
    r"\^+": _YELLOW,
}
DIFFERENCES = {r"^ *\+ .*": _GREEN, r"^ *- .*": _RED, r"^ *~ .*": _YELLOW}


def read_saved(path: Path) -> Graph | Training | TrainingStep:
    """The graph or the training in a file, or in what comes in; "run.json.gz@10": its step 10.

    Raises:
        ValueError, OSError: as `load`; also for a step that the training has not.
    """
    if path.suffix == ".py" and path.exists():
        recorded = f"graphviz-torch run -o run.json.gz {path}"
        raise ValueError(f"{path} is a script, which runs first: {recorded}")
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
    """The file itself: "run.json.gz" of "run.json.gz@10"."""
    name, mark, number = path.name.rpartition("@")
    return path.with_name(name) if mark and number.isdecimal() and not path.exists() else path


def write_text(text: str, path: Path) -> None:
    """Write text to a file, whose name is printed, or out."""
    if path == PIPE:
        sys.stdout.write(text)
    else:
        with replacement(path) as file:
            file.write(text.encode())
        say(str(path))


def beside(file: Path, suffix: str) -> Path:
    """The file's name without ".json" or ".json.gz", with another ending, in the same folder.

    Of a step, "run.json.gz@10", it is "run@10" with that ending.

    What comes in goes out.
    """
    if file == PIPE:
        return PIPE
    return file.with_name(re.sub(r"(\.json)?(\.gz)?(?=(@\d+)?$)", "", file.name, count=1) + suffix)


def say(text: object, colors: Mapping[str, int] | None = None, file: TextIO | None = None) -> None:
    """Print text of a command, in which nothing drives the terminal but colours of our own.

    A reader, a pager say, that has seen enough ends nothing of what follows.

    Args:
        colors: as for `colored`; None: no colours.
        file: where to print; None: to stdout.
    """
    out = file or sys.stdout
    shown = printable(str(text), lines=True)
    try:
        print(shown if colors is None else colored(shown, out, colors), file=out, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def colored(text: str, file: TextIO, colors: Mapping[str, int] = SEVERITIES) -> str:
    """A text for `file`: with colours where that is a terminal, or FORCE_COLOR is set; never where
    NO_COLOR is.

    Args:
        colors: pattern -> number of the ANSI colour of all that it finds.
    """
    old = sys.platform == "win32" and "WT_SESSION" not in os.environ  # it would show the escapes
    shows = file.isatty() and os.environ.get("TERM") != "dumb" and not old
    if os.environ.get("NO_COLOR") or not (shows or os.environ.get("FORCE_COLOR", "0") != "0"):
        return text
    for pattern, color in colors.items():
        text = re.sub(pattern, f"\x1b[{color}m\\g<0>\x1b[0m", text, flags=re.M)
    return text
