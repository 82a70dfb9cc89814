"""The files that a command reads and writes; "-" is what comes in and goes out."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ... import Graph, load
from ...graph.files.replacement import replacement

PIPE = Path("-")


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
