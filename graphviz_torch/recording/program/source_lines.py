"""Which line of the user's own code a call comes from.

A place is a code object and a position in it: a frame gives both at once, and the line that they
stand for is looked up when it is asked for.
"""

from __future__ import annotations

import dis
import linecache
import re
import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from ...graph.text import called_at
from ...internals.frames import OWN, cell, owner

Place = tuple[CodeType, int]  # code, and the position of an instruction in it

# A place of the user's, and the library's where that called into one and the call was made there.
Source = tuple[Place, Place | None]


class Files(dict[str, int]):
    """The owners of the files that were met."""

    def __missing__(self, file: str) -> int:
        found = self[file] = owner(file)
        return found


def raised(error: BaseException, files: Files) -> Place | None:
    """The innermost place in the user's own code that an exception came through."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if files[code.co_filename] == OWN:
            found = (code, trace.tb_lasti)
        trace = trace.tb_next
    return found


def place_of(file: str, line: int) -> Place:
    """A place that stands for a line of a file, whose code is not at hand."""
    return (lambda: None).__code__.replace(co_filename=file, co_firstlineno=line), 0


def assigned(frame: FrameType | None, name: str) -> Place | None:
    """Where a running function has assigned to one of its variables, the last place before now."""
    found = None
    if frame is not None and name:
        for step in dis.get_instructions(frame.f_code):
            if step.offset > frame.f_lasti:
                break
            if step.opname.startswith("STORE_") and step.argval == name:
                found = frame.f_code, step.offset
    return found


def lines(files: Iterable[str]) -> Callable[[Place | None], str]:
    """Turns a place in one of the files into "train.py:41"; "" for None.

    As many folders are named as tell the files apart. A notebook's cell is "In[3]".
    """
    names = short_names(set(files))
    known: dict[tuple[int, int], str] = {}

    def line(place: Place | None) -> str:
        if place is None:
            return ""
        key = id(place[0]), place[1]
        if key not in known:
            known[key] = f"{names[place[0].co_filename]}:{_line(*place)}"
        return known[key]

    return line


def sources(line: Callable[[Place | None], str]) -> Callable[[Source], str]:
    """What turns a source into "train.py:41", or "modeling.py:312, called at train.py:41"."""
    known: dict[tuple[int, ...], str] = {}

    def written(source: Source) -> str:
        (code, position), library = source
        key: tuple[int, ...] = id(code), position
        if library is not None:
            key = *key, id(library[0]), library[1]
        if key not in known:
            own = line(source[0])
            known[key] = own if library is None else called_at(line(library), own)
        return known[key]

    return written


def source_text(place: Place | None) -> str:
    """The line of the user's source without indentation and comment; "" where there is none."""
    if place is None:
        return ""
    text = linecache.getline(place[0].co_filename, _line(*place), None)
    return re.sub(r"\s+# .*", "", text).strip()


class _Table(NamedTuple):
    """The lines of a code object that are looked up, while it is there."""

    code: weakref.ref[CodeType]
    lines: dict[int, int]


_tables: dict[int, _Table] = {}  # by id() of the code, which is slow to hash


def _line(code: CodeType, position: int) -> int:
    key = id(code)
    table = _tables.get(key)
    if table is None:
        table = _tables[key] = _Table(weakref.ref(code, lambda _: _tables.pop(key, None)), {})
    line = table.lines.get(position)
    if line is None:
        line = table.lines[position] = _look_up(code, position)
    return line


def _look_up(code: CodeType, position: int) -> int:
    for start, end, line in code.co_lines():
        if start <= position < end and line is not None:
            return line
    return code.co_firstlineno


@lru_cache(maxsize=4096)
def _parts(file: str) -> tuple[str, ...]:
    return Path(file).parts


def short_names(files: set[str]) -> dict[str, str]:
    """What each file is called, with as many folders as tell them apart; a cell is "In[3]"."""
    names: dict[str, str] = {}
    parts = {file: _parts(file) for file in files}
    for file in files:
        length = 1
        rivals = [other for other in files if other != file]
        while length < len(parts[file]) and any(
            parts[other][-length:] == parts[file][-length:] for other in rivals
        ):
            length += 1
        names[file] = cell(file) or "/".join(parts[file][-length:])
    return names
