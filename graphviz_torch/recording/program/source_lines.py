"""Find the user's line of a call, and the line and module that created each node.

A position is a code object and an instruction offset. Its line number is looked up only when it is
shown. Autograd gives each node of a thread a sequence number. The recording stores the number of
the next node when a module call begins or ends, and around every call that creates nodes.
"""

from __future__ import annotations

import dis
import linecache
import re
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Generic, TypeVar

from ...graph.immutable import NamedTuple
from ...graph.text import called_at
from ...internals.frames import OWN, CodePosition, code_owner, notebook_cell
from .call_names import NO_CALL, Call, CallNames

# The user's position, and the innermost position in a library if the user's line called one.
Source = tuple[CodePosition, CodePosition | None]


class FileOwners(dict[str, int]):
    """A cache that maps a source file to its owner: the user, a library, or PyTorch."""

    def __missing__(self, file: str) -> int:
        found = self[file] = code_owner(file)
        return found


def raising_position(error: BaseException, files: FileOwners) -> CodePosition | None:
    """Return the innermost position of the user's own code in a traceback; None without one."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if files[code.co_filename] == OWN:
            found = (code, trace.tb_lasti)
        trace = trace.tb_next
    return found


def place_of(file: str, line: int) -> CodePosition:
    """Return the `CodePosition` of a line in a file, for a line without a code object."""
    return (lambda: None).__code__.replace(co_filename=file, co_firstlineno=line), 0


def last_assignment(frame: FrameType | None, name: str) -> CodePosition | None:
    """Return where a running function last assigned to a local variable; None if unknown."""
    found = None
    if frame is not None and name:
        for step in dis.get_instructions(frame.f_code):
            if step.offset > frame.f_lasti:
                break
            if step.opname.startswith("STORE_") and step.argval == name:
                found = frame.f_code, step.offset
    return found


def lines(files: Iterable[str]) -> Callable[[CodePosition | None], str]:
    """Return a function that formats a position in one of the files, such as "train.py:41".

    If several files have the same name, the text includes folders. A notebook's cell is written as
    "In[3]". The function returns "" for None.
    """
    names = short_names(set(files))
    known: dict[tuple[int, int], str] = {}

    def line(place: CodePosition | None) -> str:
        if place is None:
            return ""
        key = id(place[0]), place[1]
        if key not in known:
            known[key] = f"{names[place[0].co_filename]}:{_line(*place)}"
        return known[key]

    return line


def sources(line: Callable[[CodePosition | None], str]) -> Callable[[Source], str]:
    """Return a function that formats a Source.

    The text is "train.py:41", or "modeling.py:312, called at train.py:41" if the call is in a
    library.
    """
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


def line_number(place: CodePosition) -> int:
    """Return the number of a position's line."""
    return _line(*place)


def source_text(place: CodePosition | None) -> str:
    """Return the user's source line without indentation and comment; "" if unavailable."""
    if place is None:
        return ""
    text = linecache.getline(place[0].co_filename, _line(*place), None)
    return re.sub(r"\s+# .*", "", text).strip()


class _Table(NamedTuple):
    """A cache of line numbers by instruction offset, for one code object."""

    code: weakref.ref[CodeType]
    lines: dict[int, int]


_tables: dict[int, _Table] = {}  # by id() of the code object, since hashing one is slow


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
    """Return a short name for each file, with folders only if several files have the same name.

    A notebook's cell gets the name "In[3]".
    """
    names: dict[str, str] = {}
    parts = {file: _parts(file) for file in files}
    for file in files:
        length = 1
        rivals = [other for other in files if other != file]
        while length < len(parts[file]) and any(
            parts[other][-length:] == parts[file][-length:] for other in rivals
        ):
            length += 1
        names[file] = notebook_cell(file) or "/".join(parts[file][-length:])
    return names


Names = tuple[str, str]  # a module's path, and the scope of one call of the module
Line = TypeVar("Line")  # type that represents a source line


class Origins(Generic[Line]):
    """The lines and modules of the nodes from sequence number `first` on.

    >>> origins = Origins[str](10)
    >>> origins.enter(12, ("fc", "fc"))
    >>> origins.add_nodes(12, 14, "train.py:3")
    >>> origins.enter(14, None)
    >>> columns = origins.columns([11, 13, 14, -1], str, {"fc": "Linear(4, 2)"})
    >>> columns["module"], columns["module_class"]
    (['', 'fc', '', ''], ['', 'Linear(4, 2)', '', ''])
    >>> columns["where"]
    ['', 'train.py:3', '', '']
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.end = first  # the lines of nodes below this number are final
        # (number, names): nodes from `number` on belong to this module and scope. `names` is None
        # outside of all modules.
        self._entered: list[tuple[int, Names | None]] = [(first, None)]
        self.moments = 1  # incremented when a module call begins or ends
        # (start, end, line, call): the call at `line` created nodes with start <= number < end.
        self._lines: list[tuple[int, int, Line, Call]] = []

    def forget(self, before: int) -> None:
        """Forget the nodes with smaller numbers than `before`."""
        self.first = max(before, self.first)
        begin = bisect_right(self._entered, before, key=itemgetter(0)) - 1
        del self._entered[: max(begin, 0)]
        del self._lines[: bisect_right(self._lines, before, key=itemgetter(1))]

    def enter(self, number: int, names: Names | None) -> None:
        """Record the module and scope of nodes from `number` on; None means outside of modules."""
        self.moments += 1
        if number == self._entered[-1][0]:  # no node was created since the last entry
            self._entered[-1] = number, names
        else:
            self._entered.append((number, names))

    def add_nodes(self, start: int, end: int, line: Line | None, call: Call = NO_CALL) -> None:
        """Record the line that created nodes with start <= number < end; None if unknown."""
        self.end = end
        if line is not None:
            self._lines.append((start, end, line, call))

    def skip(self, end: int) -> None:
        """Record that nodes below `end` keep their source lines, even if these are unknown."""
        self.end = end

    def source(self, number: int, text: Callable[[Line], str]) -> str:
        """Return the line that created the node with sequence number `number`; "" if unknown."""
        return self.columns([number], text, {})["where"][0]

    def columns(
        self,
        numbers: Sequence[int],
        text: Callable[[Line], str],
        classes: Mapping[str, str],
        leading: Container[CodeType] = (),
    ) -> dict[str, list[str]]:
        """Return the columns `module`, `module_class`, `scope`, `where` and `call` of nodes.

        Unknown values are "".

        Args:
            numbers: sequence numbers of the nodes; -1 for leaves.
            text: formats a line.
            classes: for each path the classes of the modules along the path.
            leading: functions that `call` leaves out, because they call modules or backward.
        """
        # Each list covers only the range from the smallest to the largest given number, because
        # the recording may have many more nodes.

        last = max(self.end, self._entered[-1][0])
        known = [min(number, last) for number in numbers if number >= self.first]
        first = min(known, default=last)
        length = max(known, default=last) + 1 - first
        nowhere = ("", "", "")  # path, class and scope
        names = [nowhere] * length
        begin = bisect_right(self._entered, first, key=itemgetter(0)) - 1
        stop = bisect_left(self._entered, first + length, key=itemgetter(0))
        entered = self._entered[begin:stop]
        spans = pairwise([first, *(number for number, _ in entered[1:]), first + length])
        for (_, name), (start, end) in zip(entered, spans, strict=True):
            if name is not None:
                here = (name[0], classes.get(name[0], ""), name[1])
                names[start - first : end - first] = [here] * (end - start)
        sources, calls = [""] * length, [""] * length
        begin = bisect_right(self._lines, first, key=itemgetter(1))
        stop = bisect_left(self._lines, first + length, key=itemgetter(0))
        called = CallNames(leading)
        for start, end, line, call in self._lines[begin:stop]:
            if end - start == 1:
                at = start - first
                sources[at] = text(line)
                calls[at] = called.name(call, names[at][2], several=False)
            else:
                start, end = max(start - first, 0), min(end - first, length)
                sources[start:end] = [text(line)] * (end - start)
                said = called.name(call, names[start][2], several=True) if start < length else ""
                calls[start:end] = [said] * (end - start)
        # The last item of each list is for leaves and for nodes older than the recording.
        names.append(nowhere)
        sources.append("")
        calls.append("")
        before = self.first
        places = [(n if n < last else last) - first if n >= before else -1 for n in numbers]
        made_in = list(map(names.__getitem__, places))
        paths, kinds, scopes = (list(map(itemgetter(k), made_in)) for k in range(3))
        return {
            "module": paths,
            "module_class": kinds,
            "scope": scopes,
            "where": list(map(sources.__getitem__, places)),
            "call": list(map(calls.__getitem__, places)),
        }


Lines = tuple[CodePosition, ...]  # call stack of a forward, outermost first


def first_difference(first: Lines, second: Lines) -> int:
    """Return the index of the first line in which two call stacks differ.

    If no line differs, it is the index of the last line.
    """
    pairs = zip(first, second, strict=False)
    differ = next((i for i, (a, b) in enumerate(pairs) if a != b), len(first))
    return min(differ, len(first) - 1, len(second) - 1)


def own_line(lines: Lines, used: Sequence[Lines]) -> CodePosition:
    """Return the source line to report for a forward whose result the program discarded.

    This is the line that calls the module. If this line also calls used forwards, it is the line of
    the call stack at which the discarded forward differs from the used ones.

    Args:
        lines: call stack of the discarded forward.
        used: call stacks of used forwards.
    """
    if all(lines[-1] != other[-1] for other in used):
        return lines[-1]
    return lines[max(first_difference(lines, other) for other in used)]
