"""Save a training run in a file that grows by a line per step and stays readable if it is killed.

The first line is the header. Each other line is a step: its number, and for each backward pass the
columns of its graph, or only the changes since an earlier graph with the same edges. If two lines
have the same step number, the second is used. From the second step on, measured numbers are rounded
to two significant digits (patch.py). In a compressed file each write is one gzip member. An
incomplete last line, which a kill or a full disk may leave, is ignored. A column that does not
change is decoded once, however many steps contain it.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import IOBase
from pathlib import Path
from typing import Any, NamedTuple

from ..files.columns import Known, codec
from ..files.file import VERSION, check_head, json_of, read_unpacked
from ..files.limits import MAX_BYTES, Limits, members, rows
from ..files.replacement import replacement
from ..gc import with_gc_disabled
from ..graph import Graph
from ..text import printable
from .patch import apply_change, change, extent
from .step import TrainingStep

FORMAT = "graphviz_torch training"
_BEGINNING = f'{{"format": "{FORMAT}"'.encode()
_MAX_GRAPHS = 8  # maximum number of graphs to remember, each with different edges
_CHUNK = 1 << 18


class _Shape(NamedTuple):
    """For one set of edges: columns of the latest graph that has them, and decoded columns."""

    columns: Any
    known: Known


class _KnownGraphs:
    """The latest graph for each set of edges; the most recently used is last."""

    def __init__(self) -> None:
        self.latest: tuple[_Shape, ...] = ()

    def index_of(self, columns: Any) -> int | None:
        """Return the index of the known graph with the same edges as `columns`, or None."""
        edges = columns.get("edges")
        places = range(len(self.latest) - 1, -1, -1)
        return next((i for i in places if self.latest[i].columns.get("edges") == edges), None)

    def take(self, columns: Any, place: int | None) -> _Shape:
        """Store the columns of a graph as the most recently used.

        Args:
            columns: the columns.
            place: index of the known graph to replace; None adds a graph.
        """
        known = Known() if place is None else self.latest[place].known
        others = [each for at, each in enumerate(self.latest) if at != place]
        self.latest = (*others[-_MAX_GRAPHS + 1 :], _Shape(columns, known))
        return self.latest[-1]


class TrainingFile:
    """A file to which a training run appends its steps. The first step replaces an existing file.

    Args:
        path: the file; compressed if it ends in ".gz".
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._shapes = _KnownGraphs()
        self._end: tuple[int, int] | None = None  # inode and size of the file

    def append(self, *steps: TrainingStep) -> None:
        """Append steps.

        If this raises, nothing is written.

        Raises:
            ValueError: for a step that could not be read again.
            OSError: as `open` does; also if the file was removed, replaced or changed since the
                last `append`.
        """
        before = self._shapes.latest
        try:
            text = "".join(map(self._line, steps))
            if self._end is None:
                text = f'{_BEGINNING.decode()}, "version": {VERSION}}}\n{text}'
            data = text.encode()
            self._write(gzip.compress(data, 6, mtime=0) if self.path.suffix == ".gz" else data)
        except BaseException:
            self._shapes.latest = before
            raise

    def _line(self, step: TrainingStep) -> str:
        graphs = []
        for graph in step.backwards:
            graph.check()
            columns = codec(Graph).encode([graph], "graph")
            place = self._shapes.index_of(columns)
            if place is None:
                graphs.append({"columns": columns})
            else:
                old = self._shapes.latest[place].columns
                difference = change(old, columns)
                graphs.append({"like": place, "change": difference})
                columns = apply_change(old, difference)
            self._shapes.take(columns, place)
        row = {"step": step.number, "graphs": graphs}
        return json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n"

    def _write(self, data: bytes) -> None:
        if self._end is None:
            with replacement(self.path) as file:
                file.write(data)
        else:
            # Unbuffered, because after a failed write a buffer would be written again by
            # `truncate`.
            with open(self.path, "r+b", buffering=0) as file:
                if _end_of(file) != self._end:
                    raise OSError(
                        f"{self.path} was replaced or changed since the last step was written."
                    )
                file.seek(0, os.SEEK_END)
                try:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[file.write(rest) :]
                except BaseException:
                    with suppress(OSError):
                        file.truncate(self._end[1])
                    raise
        with suppress(OSError), open(self.path, "rb") as written:
            self._end = _end_of(written)


def _end_of(file: IOBase) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_size


def is_training(path: str | Path, max_bytes: int = MAX_BYTES) -> bool:
    """Return True if a file begins with the header of a training run.

    Raises:
        ValueError: if the file begins with too many empty gzip members.
        OSError: as `open` does.
    """
    try:
        limits = Limits(os.path.getsize(path), max_bytes)
        pieces = read_unpacked(path, len(_BEGINNING), limits, whole=False)
        return next(pieces, b"").startswith(_BEGINNING)
    except zlib.error:
        return False
    except ValueError as error:
        raise ValueError(f"{printable(str(path))}: {error}") from None


@with_gc_disabled
def read_steps(
    path: str | Path, max_bytes: int, step: int | None = None
) -> tuple[TrainingStep, ...]:
    """Return the complete steps in a file.

    Args:
        path: the file.
        max_bytes: maximum number of bytes of uncompressed text.
        step: number of the step to decode; the other steps are returned without graphs. None
            decodes all steps.

    Raises:
        ValueError: if the file contains no complete step, or its text exceeds the `Limits`.
        OSError: as `open` does.
    """
    size = os.path.getsize(path)
    try:
        steps = tuple(_steps(path, Limits(size, max_bytes), step))
        if not steps:
            raise ValueError(
                f"the file was cut short at byte {size:,}, before its first step was complete."
            )
        return steps
    except zlib.error:
        raise ValueError(f"{printable(str(path))}: the compressed data is damaged.") from None
    except RecursionError:
        raise ValueError(
            f"{printable(str(path))}: this is not a saved training run: it is nested too deeply."
        ) from None
    except ValueError as error:
        raise ValueError(f"{printable(str(path))}: {error}") from None


def _steps(path: str | Path, limits: Limits, wanted: int | None) -> Iterator[TrainingStep]:
    lines = _lines(path, limits)
    head = json_of(next(lines, b""))
    check_head(head, FORMAT)
    if head:
        raise ValueError(f"the header has an unknown field {min(head)!r:.40}.")
    shapes, size = _KnownGraphs(), 0
    step: TrainingStep | None = None
    for line in lines:
        number, written = members(json_of(line), ("step", "graphs"), "a step")
        if type(number) is not int:
            raise ValueError(f"a step has the number {number!r:.40}, which is not an integer.")
        graphs: list[Graph] = []
        size += 1 + extent(written)
        limits.check_values(size)
        for row in rows(written, None, f"step {number}"):
            before, shape = shapes.latest, _shape(row, shapes)
            if wanted not in (None, number):
                continue
            if not any(each.columns is shape.columns for each in before):
                # Columns of an earlier graph are in the cache, so only new columns are counted.
                size += extent(shape.columns)
                limits.check_values(size)
            graphs.append(shape.known.decode(codec(Graph), shape.columns))
        if step is not None and step.number != number:
            yield step
        step = TrainingStep(number, tuple(graphs))
    if step is not None:
        yield step


def _shape(row: Any, shapes: _KnownGraphs) -> _Shape:
    """Return the columns of a graph, and store them in `shapes` as the most recently used.

    Args:
        row: the entry of the graph in a step: its columns, or the changes to an earlier graph.
        shapes: the earlier graphs.
    """
    if isinstance(row, dict) and row.keys() == {"columns"}:
        columns, place = row["columns"], None
    else:
        place, difference = members(row, ("like", "change"), "a graph of a step")
        if type(place) is not int or not 0 <= place < len(shapes.latest):
            known = len(shapes.latest)
            raise ValueError(f"a graph refers to graph {place!r:.40} of the {known} before it.")
        columns = apply_change(shapes.latest[place].columns, difference)
    if not isinstance(columns, dict):
        raise ValueError("the columns of a graph are not a JSON object.")
    return shapes.take(columns, place)


def _lines(path: str | Path, limits: Limits) -> Iterator[bytes]:
    """Yield the complete lines of a file."""
    pieces: list[bytes] = []
    size = 0
    for text in read_unpacked(path, _CHUNK, limits, whole=False):
        size += len(text)
        limits.check_text(size)
        first, *others = text.split(b"\n")
        pieces.append(first)
        for piece in others:
            limits.check(*pieces)
            yield b"".join(pieces)
            pieces = [piece]
