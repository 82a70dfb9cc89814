"""Boxes for data and for calls without an autograd node, beside the drawn nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..graph import Untracked
from ..graph.tensors import elements_text
from . import labels
from .drawing.drawing import Drawing
from .drawing.tree import Box, Open

_MAX_BOXES = 24  # of data and calls; of a loop that reads data in every step, the first
_MAX_TITLE = 40  # characters
_MANY_DATA = 4  # stubs of data: of more, those that enter what is closed are left out


class Stub(NamedTuple):
    """Data, or a call without a node, as it is drawn."""

    position: int  # in `Graph.untracked`
    title: str
    details: tuple[str, ...]
    is_data: bool
    frames: tuple[int, ...]  # the open groups around it, outermost first


End = int | Stub  # a key of the drawing, or a stub


class Stubs(NamedTuple):
    """Boxes beside the nodes, and their links in the direction of the data."""

    stubs: tuple[Stub, ...]
    links: tuple[tuple[End, End], ...]


def stubs_of(drawing: Drawing) -> Stubs:
    """Return the boxes for what is untracked, with their edges.

    A call inside a closed group is a part of that group: what it takes enters the group. What leads
    to nothing that is drawn is left out.
    """
    rows = drawing.graph.untracked
    if not rows:
        return Stubs((), ())
    drawn = {*drawing.nodes, *(~number for number in drawing.boxes)}
    places = _Places(drawing)
    inside = [places.closed(row) for row in rows]
    ends: list[set[tuple[str, int]]] = [set() for _ in rows]  # where each leads to, in order
    for i, row in reversed([*enumerate(rows)]):
        if places.is_repeated(row):
            continue
        keys = {key for node in row.targets if (key := drawing.key(node)) in drawn}
        ends[i] |= {("key", key) for key in keys}
        here = inside[i]
        for j in row.inputs if ends[i] or here is not None else ():
            ends[j].add(("stub", i) if here is None else ("key", here))
    shown = [i for i in range(len(rows)) if ends[i] and inside[i] is None]
    alike = _merged(rows, ends, shown)
    shown = _without_details(drawing, rows, ends, list(alike))[:_MAX_BOXES]
    made = {i: _stub(i, [rows[j] for j in alike[i]], places.frames(rows[i])) for i in shown}
    edges: list[tuple[End, End]] = []
    for i, stub in made.items():
        sources = {key for node in rows[i].sources if (key := drawing.key(node)) in drawn}
        edges += [(key, stub) for key in sorted(sources)]
        for kind, end in sorted(ends[i]):
            if kind == "key":
                edges.append((stub, end))
            elif end in made:
                edges.append((stub, made[end]))
    return Stubs(tuple(made.values()), tuple(edges))


def _merged(
    rows: Sequence[Untracked], ends: Sequence[set[tuple[str, int]]], shown: Sequence[int]
) -> dict[int, list[int]]:
    """Return the data of one name that enters the same places, by the first of them."""
    first: dict[object, int] = {}
    found: dict[int, list[int]] = {}
    for i in shown:
        row = rows[i]
        kind = [(meta.dtype, len(meta.shape)) for meta in row.tensors]
        same = (row.label, frozenset(ends[i]), *kind) if row.kind == "data" else i
        found.setdefault(first.setdefault(same, i), []).append(i)
    return found


def _without_details(
    drawing: Drawing,
    rows: Sequence[Untracked],
    ends: Sequence[set[tuple[str, int]]],
    shown: list[int],
) -> list[int]:
    """Leave out data that enters closed parts of open modules alone, where there is much data.

    A mask that a library makes for each of its layers tells less than what the program gives.
    """
    if sum(rows[i].kind == "data" for i in shown) <= _MANY_DATA:
        return shown
    paths = drawing.tree.paths
    return [
        i
        for i in shown
        if rows[i].kind != "data"
        or any(kind != "key" or key >= 0 or not paths[key] for kind, key in ends[i])
    ]


def _stub(position: int, alike: Sequence[Untracked], frames: tuple[int, ...]) -> Stub:
    row = alike[0]
    columns = zip(*[each.tensors for each in alike], strict=True)
    shapes = [", ".join(map(labels.shapes, columns))] if row.tensors else []
    few = len(alike) < 2 and row.values is not None and 0 < len(row.values) <= labels.FEW
    values = [elements_text(row.values, row.tensors[0].shape)] if few and row.values else []
    if row.kind == "data":
        return Stub(position, row.label or "data", (*shapes, *values), True, frames)
    reason = [row.reason] if row.reason else []
    title = row.title
    if frames and row.kind == "module":  # the frame says the path
        title = title.rpartition(".")[2] if "." in title.partition(" ")[0] else title
    return Stub(position, title[-_MAX_TITLE:], (*shapes, *reason), False, frames)


class _Places:
    """The groups of a drawing by the path of their module call."""

    def __init__(self, drawing: Drawing) -> None:
        self._closed: dict[str, int] = {}  # keys
        self._opened: dict[str, tuple[int, ...]] = {}
        self._repeated: set[str] = set()
        if drawing.groups is None:
            return
        groups = drawing.groups.groups
        for part, path, _ in drawing.tree.parts:
            if isinstance(part, Box):
                self._closed[groups[part.group].path] = ~part.group
                self._repeated |= {groups[number].path for number in part.repeats}
            elif isinstance(part, Open) and part.group is not None:
                self._opened[groups[part.group].path] = (*path, part.group) if part.framed else path
                self._repeated |= {groups[number].path for number in part.repeats}

    def closed(self, row: Untracked) -> int | None:
        """Return the key of the closed group that a call is in, or None."""
        return next((self._closed[p] for p in _around(row) if p in self._closed), None)

    def is_repeated(self, row: Untracked) -> bool:
        """Return True if another block like the one around a call is drawn for it."""
        return any(path in self._repeated for path in _around(row))

    def frames(self, row: Untracked) -> tuple[int, ...]:
        """Return the open groups around a call, outermost first."""
        return next((self._opened[p] for p in _around(row) if p in self._opened), ())


def _around(row: Untracked) -> Iterator[str]:
    """Yield the paths of the modules around a call, innermost first."""
    if row.kind == "data":
        return
    path = row.label.rpartition(".")[0] if row.kind == "module" else row.module
    while path:
        yield path
        path = path.rpartition(".")[0]
