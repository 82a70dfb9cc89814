"""Save a training run in a file that grows by a line per step and stays readable if it is killed.

The first line is the header. Each other line is a step: its number, and for each backward pass the
columns of its graph, or only the changes since an earlier graph with the same edges. If two lines
have the same step number, the second is used. From the second step on, measured numbers are rounded
to two significant digits. In a compressed file each write is one gzip member. An incomplete last
line, which a kill or a full disk may leave, is ignored. A column that does not change is decoded
once, however many steps contain it.

The change of an object is an object with the changes of its members. Any other change is a list:
["=", value] for a new value, ["~", ...] for measured numbers, ["-"] for a removed member.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from io import IOBase
from pathlib import Path
from typing import Any

from .files.columns import Known, codec
from .files.file import VERSION, check_head, json_of, read_unpacked
from .files.limits import MAX_BYTES, Limits, members, rows
from .files.replacement import replacement
from .gc import with_gc_disabled
from .graph import Graph
from .immutable import NamedTuple
from .text import printable
from .training_step import TrainingStep

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


_MIN_EXPONENT = -324  # exponent of the smallest double
_MAX_NUMBER = 1.7e308
_UNMEASURED = (None, "NaN", "Infinity", "-Infinity")
# Field of `GradientStats` or `Node` -> number of significant digits to keep.
MEASURED = {"norm": 2, "max_abs": 2, "mean": 1, "zero_fraction": 2, "seconds": 2}


def changes(old: Sequence[Any], new: Sequence[Any], digits: int = 2) -> list[Any]:
    """Return the difference of each new number from the old one, in units of the last kept digit.

    A unit grows with each power of ten, like the distance between floating-point numbers. Values
    that are not finite numbers are returned unchanged.

    >>> changes([1.0, 1.0, None], [1.05, -1.05, 0.512])
    [2, 3, 58224]
    >>> apply_changes([1.0, 1.0, None], [2, 3, 58224])
    [1.1, -1.1, 0.51]
    """
    pairs = zip(old, new, strict=True)
    return [b if b in _UNMEASURED else _place(b, digits) - _place(a, digits) for a, b in pairs]


def apply_changes(old: Sequence[Any], changed: Sequence[Any], digits: int = 2) -> list[Any]:
    """Return the rounded new numbers, given the old numbers and the result of `changes`.

    Raises:
        ValueError: if `changes` cannot have returned `changed`.
    """
    if len(old) != len(changed):
        raise ValueError(
            f"a step changes {len(changed)} numbers of a column, but the previous step has "
            f"{len(old)}."
        )
    found = []
    for a, step in zip(old, changed, strict=True):
        if type(step) is not int and step not in _UNMEASURED:
            raise ValueError(
                f"a change between two steps is {step!r:.40}; it must be a whole number."
            )
        found.append(_number(_place(a, digits) + step, digits) if type(step) is int else step)
    return found


@lru_cache(1 << 15)
def _place(number: Any, digits: int) -> int:
    """Return the code of a number: an integer, so that near numbers have near codes.

    It is twice the position of the absolute value among all positive numbers of `digits`
    significant digits, plus 1 if the number is negative.
    """
    if number in _UNMEASURED or number == 0:
        return 0
    size = min(abs(number), _MAX_NUMBER)
    mantissa, _, exponent = f"{size:.{digits - 1}e}".partition("e")
    first = 10 ** (digits - 1)
    place: int = (
        (int(exponent) - _MIN_EXPONENT) * 9 * first + int(mantissa.replace(".", "")) - first + 1
    )
    # A number below 1, such as a zero_fraction of 0.999, must not be rounded to 1.
    place -= size < 1 <= float(f"{mantissa}e{exponent}")
    return 2 * place + int(number < 0)


@lru_cache(1 << 15)
def _number(place: int, digits: int) -> float:
    first = 10 ** (digits - 1)
    exponent, mantissa = divmod(place // 2 - 1, 9 * first)
    power = exponent + _MIN_EXPONENT - digits + 1
    size = float(f"{mantissa + first}e{power}") if place > 1 else 0.0
    if place < 0 or size > _MAX_NUMBER:
        raise ValueError(f"{place} does not encode a number.")
    return -size if place % 2 else size


_MAX_NESTED = 64  # a longer list is assumed to contain only numbers and strings
_NESTS = {dict, list}

Change = dict[str, Any] | list[Any] | None  # None if the trees are equal


def change(old: Any, new: Any, name: str = "") -> Change:
    """Return the change from `old` to `new`, with measured numbers rounded.

    Args:
        old, new: trees of JSON.
        name: the key of the tree in the object that contains it; "" for the outermost tree.

    >>> change({"id": [0, 1], "norm": [1.0]}, {"id": [0, 1], "norm": [2.0]})
    {'norm': ['~', 20]}
    """
    if old == new and type(old) is type(new):
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[str, Any] = {key: ["-"] for key in old if key not in new}
        for key, value in new.items():
            inner = change(old[key], value, key) if key in old else ["=", value]
            if inner is not None:
                found[key] = inner
        return found
    equal_sizes = isinstance(old, list) and isinstance(new, list) and len(old) == len(new)
    if equal_sizes and name in MEASURED:
        return ["~", *changes(old, new, MEASURED[name])]
    return ["=", new]


def apply_change(old: Any, by: Change, name: str = "") -> Any:
    """Return the new tree, in which measured numbers are rounded.

    Args:
        old: the old tree.
        by: the result of `change`.
        name: the key of the tree in the object that contains it; "" for the outermost tree.

    Raises:
        ValueError: if `by` is not a change of `old`.
    """
    if by is None:
        return old
    if isinstance(by, dict) and isinstance(old, dict):
        tree = dict(old)
        for key, inner in by.items():
            if inner == ["-"] and key in tree:
                del tree[key]
            elif key in tree or (isinstance(inner, list) and inner[:1] == ["="]):
                tree[key] = apply_change(tree.get(key), inner, key)
            else:
                raise ValueError(
                    f"a step changes {key!r:.40}, which the previous step does not have."
                )
        return tree
    if isinstance(by, list) and by[:1] == ["="] and len(by) == 2:
        return by[1]
    if isinstance(by, list) and by[:1] == ["~"] and name in MEASURED and isinstance(old, list):
        return apply_changes(old, by[1:], MEASURED[name])
    raise ValueError(f"the change of {name!r:.40} is unknown, or does not fit the previous step.")


def extent(tree: Any) -> int:
    """Return a lower bound of the number of values in a tree.

    An item of a long list counts as one value.
    """
    count, waiting = 0, [tree]
    while waiting:
        part = waiting.pop()
        count += 1
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list):
            if len(part) < _MAX_NESTED and _NESTS & set(map(type, part)):
                waiting += part
            else:
                count += len(part)
    return count
