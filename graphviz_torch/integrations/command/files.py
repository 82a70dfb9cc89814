"""The files that a command reads and writes; "-" is what comes in and goes out."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ... import Graph, load
from ...graph.files.replacement import replacement

PIPE = Path("-")

_RED, _GREEN, _YELLOW, _BLUE = 31, 32, 33, 34
# Signs with the rule behind them, and a severity that begins a line.
SEVERITIES = {
    r"✖ [\w-]+|^error\b": _RED,
    r"⚠ [\w-]+|^warning\b": _YELLOW,
    r"\N{INFORMATION SOURCE} [\w-]+|^info\b": _BLUE,
}
DIFFERENCES = {r"^ *\+ .*": _GREEN, r"^ *- .*": _RED, r"^ *~ .*": _YELLOW}


def read_graph(path: Path) -> Graph:
    """The graph in a file, or in what comes in.

    Raises:
        ValueError, OSError: as `load`.
    """
    if path != PIPE:
        return load(path)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "stdin"
        copy.write_bytes(sys.stdin.buffer.read())
        try:
            return load(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), "stdin")) from None


def write_text(text: str, path: Path) -> None:
    """Write text to a file, whose name is printed, or out."""
    if path == PIPE:
        sys.stdout.write(text)
    else:
        with replacement(path) as file:
            file.write(text.encode())
        print(path)


def beside(file: Path, suffix: str) -> Path:
    """The file's name without ".json" or ".json.gz", with another ending, in the same folder.

    What comes in goes out.
    """
    if file == PIPE:
        return PIPE
    return file.with_name(file.name.removesuffix(".gz").removesuffix(".json") + suffix)


def colored(text: str, file: TextIO, colors: Mapping[str, int] = SEVERITIES) -> str:
    """A text for `file`: where that is a terminal, and NO_COLOR is not set, with colours.

    Args:
        colors: pattern -> number of the ANSI colour of all that it finds.
    """
    old = sys.platform == "win32" and "WT_SESSION" not in os.environ  # it would show the escapes
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or old or not file.isatty():
        return text
    for pattern, color in colors.items():
        text = re.sub(pattern, f"\x1b[{color}m\\g<0>\x1b[0m", text, flags=re.M)
    return text
