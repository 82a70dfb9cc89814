"""Add boxes for data, and for calls without an autograd node, to a drawing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ..graph import Graph, Transfer, Untracked
from ..graph.tensors import elements_text
from . import labels
from .drawing.drawing import Drawing
from .drawing.values import Box, End, Open, Stub, Stubs, common_path

_MAX_BOXES = 24  # maximum number of boxes for data and calls, in program order
_MAX_CALLS = 6  # more connected function calls on data are drawn as one box
_MAX_TITLE = 40  # maximum number of characters of a name in a title; the end is kept
_MAX_DATA_BOXES = 4  # with more boxes of data, data that only enters closed groups is left out

_MIN_LISTED = 3  # if more data enters the same elements, it is listed in one box
_MAX_LISTED = 8  # maximum number of entries of a list


def stubs_of(drawing: Drawing) -> Stubs:
    """Return the boxes for `Graph.untracked`, with their links.

    A call inside a closed group has no box; its inputs are linked to the group. Data and calls that
    no drawn element uses are left out.
    """
    rows = drawing.graph.untracked
    if not rows:
        return Stubs((), ())
    drawn = {*drawing.nodes, *(~number for number in drawing.boxes)}
    places = _GroupLookup(drawing)
    copies = copies_by_data(drawing.graph)
    inside = [places.closed_group(row) for row in rows]
    # for each entry, the drawn elements ("key", key) and entries ("stub", index) that use it
    ends: list[set[tuple[str, int]]] = [set() for _ in rows]
    alike: dict[int, list[int]] = {}  # entry with a box -> the entries that share this box
    drawn_for: dict[object, int] = {}
    chains = _chains(rows, [i for i in range(len(rows)) if inside[i] is None])
    for i, row in reversed([*enumerate(rows)]):
        if places.is_repeated(row):
            continue
        ends[i] |= {("key", key) for node in row.targets if (key := drawing.key(node)) in drawn}
        one = inside[i] if inside[i] is not None else places.closed_call(row, ends[i])
        if one is None and not ends[i]:
            continue
        if one is None:
            sources = frozenset(map(drawing.key, row.sources))
            chain = chains.get(i)
            same = (_merge_key(row), frozenset(ends[i]), sources) if chain is None else chain
            first = drawn_for.setdefault(same, i)
            ends[first] |= ends[i] - {("stub", first)}
            alike.setdefault(first, []).insert(0, i)
        for j in row.inputs:
            ends[j].add(("stub", first) if one is None else ("key", one))
    ordered = sorted(alike, key=alike.__getitem__)
    shown = _limit_boxes(_drop_inner_data(drawing, rows, ends, ordered), ends)
    framed = _frames(drawing, rows, places, alike, ends, shown)
    made: dict[int, Stub] = {}
    together: dict[frozenset[tuple[str, int]], list[int]] = {}
    for i in shown:
        group = [rows[j] for j in alike[i]]
        stub = (_chain_stub if i in chains else _stub)(alike[i][0], group, framed[i])
        numbers = dict.fromkeys(number for row in group for number in row.copies)
        copied = labels.copies(one for number in numbers for one in copies.get(number, ()))
        made[i] = stub._replace(details=(*stub.details, *copied))
        if stub.is_data and not copied:
            together.setdefault(frozenset(ends[i]), []).append(i)
    _merge_chains(made, {i: [rows[j] for j in alike[i]] for i in made if i in chains}, ends)
    for several in together.values():
        if len(several) >= _MIN_LISTED:
            made[several[0]] = _list_stub([made[i] for i in several])
            for i in several[1:]:
                del made[i]

    def in_order(end: tuple[str, int]) -> tuple[bool, int]:
        kind, number = end
        return kind == "stub", drawing.place(number) if kind == "key" else number

    edges: list[tuple[End, End]] = []
    for i, stub in made.items():
        keys = {key for node in rows[i].sources if (key := drawing.key(node)) in drawn}
        keys |= {box for j in rows[i].inputs if (box := inside[j]) is not None}
        edges += [(key, stub) for key in sorted(keys, key=drawing.place)]
        for kind, end in sorted(ends[i], key=in_order):
            if kind == "key":
                edges.append((stub, end))
            elif end in made:
                edges.append((stub, made[end]))
    return Stubs(tuple(made.values()), tuple(edges))


def copies_by_data(graph: Graph) -> dict[int, list[Transfer]]:
    """Return `Transfer.data` -> the copies in forward that created no node."""
    found: dict[int, list[Transfer]] = {}
    for each in graph.transfers:
        if each.node is None and each.phase == "forward" and each.data is not None:
            found.setdefault(each.data, []).append(each)
    return found


def _chains(rows: Sequence[Untracked], positions: Sequence[int]) -> dict[int, int]:
    """Return position -> id of its chain, for chains of more than `_MAX_CALLS` function calls.

    A chain consists of connected calls whose operands need no gradient, such as those that prepare
    a mask or a positional encoding.

    Args:
        rows: `Graph.untracked`.
        positions: indices in `rows` of the entries to consider.
    """
    among = {i for i in positions if rows[i].kind == "function" and not rows[i].sources}
    number = {i: i for i in among}
    for i in sorted(among):  # inputs have lower positions than their users
        joined = {number[j] for j in rows[i].inputs if j in among}
        if joined:
            number[i] = first = min(joined)
        if len(joined) > 1:
            number |= {j: first for j, each in number.items() if each in joined}
    sizes = Counter(number.values())
    return {i: chain for i, chain in number.items() if sizes[chain] > _MAX_CALLS}


def _limit_boxes(shown: list[int], ends: Sequence[set[tuple[str, int]]]) -> list[int]:
    """Return at most `_MAX_BOXES` of the positions `shown`.

    Entries that a drawn element uses directly take precedence.

    Args:
        shown: indices of the entries that would have a box.
        ends: for each entry, the drawn elements and entries that use it.
    """
    nearest = sorted(shown, key=lambda i: all(kind == "stub" for kind, _ in ends[i]))
    kept = set(nearest[:_MAX_BOXES])
    # Leave out the box of an entry if all boxes that use the entry were left out.
    for i in sorted(kept, reverse=True):
        if not any(kind == "key" or end in kept for kind, end in ends[i]):
            kept.remove(i)
    return [i for i in shown if i in kept]


def _merge_key(row: Untracked) -> object:
    """Return a key for merging entries: entries with equal keys and equal users share a box.

    For example, calls and data that each step of a loop repeats are merged.
    """
    tensors = [(meta.dtype, len(meta.shape)) for meta in row.tensors]
    if row.kind == "data":
        return (row.label, row.reason, *tensors)
    return (
        row.kind,
        _without_call_number(row.label),
        row.module_class,
        row.reason,
        row.where,
        *tensors,
    )


def _without_call_number(label: str) -> str:
    """Return a label without its call number: "cell" for "cell#2"."""
    name, _, number = label.rpartition("#")
    return name if number.isdecimal() else label


def _drop_inner_data(
    drawing: Drawing,
    rows: Sequence[Untracked],
    ends: Sequence[set[tuple[str, int]]],
    shown: list[int],
) -> list[int]:
    """Return `shown` without less informative data.

    Data without a name that enters only closed groups is left out. If there are many boxes of data,
    all data that enters only closed groups inside open modules is left out. Such data is often a
    mask that a library creates for each layer, which is less informative than the inputs of the
    program.

    Args:
        drawing: the drawing.
        rows: `Graph.untracked`.
        ends: for each entry, the drawn elements and entries that use it.
        shown: indices of the entries that would have a box.
    """
    paths = drawing.tree.paths
    many = sum(rows[i].kind == "data" for i in shown) > _MAX_DATA_BOXES

    def has_box(i: int) -> bool:
        row = rows[i]
        if row.kind != "data" or (row.label and not many):
            return True
        return any(
            kind != "key" or key >= 0 or (row.label and not paths[key]) for kind, key in ends[i]
        )

    return list(filter(has_box, shown))


def _stub(position: int, alike: Sequence[Untracked], frames: tuple[int, ...]) -> Stub:
    row = alike[0]
    columns = zip(*[each.tensors for each in alike], strict=True)
    shapes = [", ".join(map(labels.shapes, columns))] if row.tensors else []
    few = (
        len(alike) < 2
        and row.values is not None
        and 0 < len(row.values) <= labels.MAX_ELEMENTS_SHOWN
    )
    values = [elements_text(row.values, row.tensors[0].shape)] if few and row.values else []
    reason = [row.reason] if row.reason else []
    if row.kind == "data":
        return Stub(position, row.label or "data", (*shapes, *reason, *values), True, frames)
    title = (
        row.title if len(alike) < 2 else replace(row, label=_without_call_number(row.label)).title
    )
    if frames and row.kind == "module":  # the frame around the box shows the rest of the path
        name, dot, kind = title.partition(" · ")
        title = f"{name.rpartition('.')[2]}{dot}{kind}"
    times = [f"\N{MULTIPLICATION SIGN}{len(alike)}"] if len(alike) > 1 else []
    names = title.split(" · ")
    ends = [one if len(one) <= _MAX_TITLE else f"…{one[1 - _MAX_TITLE :]}" for one in names]
    title = "  ".join([" · ".join(ends), *times])
    return Stub(position, title, (*shapes, *reason), False, frames)


def _list_stub(stubs: Sequence[Stub]) -> Stub:
    """Return one box for data that enters the same elements."""
    entries = [(stub.title, *stub.details[:1]) for stub in stubs]
    counted = Counter(entries)
    listed = [
        (f"{name} {labels.TIMES}{times}" if times > 1 else name, "".join(shape))
        for (name, *shape), times in counted.items()
    ]
    more = len(listed) - _MAX_LISTED
    if more > 0:
        listed[_MAX_LISTED - 1 :] = [(f"and {more + 1} more", "")]
    title = ", ".join(dict.fromkeys(stub.title for stub in stubs))
    return stubs[0]._replace(title=title, details=(), listed=tuple(listed))


def _frames(
    drawing: Drawing,
    rows: Sequence[Untracked],
    places: _GroupLookup,
    alike: Mapping[int, Sequence[int]],
    ends: Sequence[set[tuple[str, int]]],
    shown: Sequence[int],
) -> dict[int, tuple[int, ...]]:
    """Return position -> open groups around the box, outermost first.

    A call is in the frame of its module. Data is in the innermost frame that contains all elements
    that the data enters, and also another input of each of these elements. The data of a module's
    first operation is therefore drawn above the frame of the module.
    """
    found = {
        i: common_path([places.frames(rows[j]) for j in alike[i]])
        for i in shown
        if rows[i].kind != "data"
    }
    paths, sources = drawing.tree.paths, defaultdict[int, list[int]](list)
    for source, target in drawing.ends:
        sources[target].append(source)
    for i in shown:
        if i in found:
            continue
        around = []
        for kind, end in ends[i]:
            own = paths.get(end, ()) if kind == "key" else found.get(end, ())
            inputs = sources[end] if kind == "key" else map(drawing.key, rows[end].sources)
            shared = [common_path([own, paths.get(key, ())]) for key in inputs]
            around.append(max(shared, key=len, default=()))
        found[i] = common_path(around) if around else ()
    return found


def _chain_stub(position: int, rows: Sequence[Untracked], frames: tuple[int, ...]) -> Stub:
    names = list(dict.fromkeys(row.label for row in rows))
    title = ", ".join([*names[:3], *["…"] * (len(names) > 3)])
    shapes = ", ".join(map(labels.shapes, zip(rows[-1].tensors, strict=True)))
    details = (f"{len(rows)} operations", shapes, rows[0].reason)
    return Stub(position, title, tuple(filter(None, details)), False, frames)


def _merge_chains(
    made: dict[int, Stub],
    chains: Mapping[int, Sequence[Untracked]],
    ends: Sequence[set[tuple[str, int]]],
) -> None:
    """Draw chains of the same calls, with the same inputs and users, as one box.

    Args:
        made: the boxes by position, from which boxes are removed.
        chains: position -> the entries of each chain among `made`.
        ends: for each entry, the drawn elements and entries that use it.
    """
    inputs = defaultdict[int, set[int]](set)
    for i in made:
        for kind, end in ends[i]:
            if kind == "stub":
                inputs[end].add(i)
    merged: dict[object, list[int]] = {}
    for i, rows in chains.items():
        calls = tuple(map(_merge_key, rows))
        key = calls, made[i].frames, frozenset(inputs[i]), frozenset(ends[i])
        merged.setdefault(key, []).append(i)
    for first, *rest in merged.values():
        if rest:
            title = f"{made[first].title}  {labels.TIMES}{1 + len(rest)}"
            made[first] = made[first]._replace(title=title)
            for i in rest:
                del made[i]


class _GroupLookup:
    """A lookup of the drawn groups that contain an entry of `Graph.untracked`."""

    def __init__(self, drawing: Drawing) -> None:
        self._closed: dict[str, int] = {}  # path -> key of the closed group
        self._lone: set[str] = set()  # paths of closed groups with parameters only
        self._opened: dict[str, tuple[int, ...]] = {}
        self._repeated: set[str] = set()
        self._calls: set[int] = set()  # closed function calls
        if drawing.groups is None:
            return
        groups = drawing.groups.groups
        for part, path, _ in drawing.tree.parts:
            if isinstance(part, Box):
                if groups[part.group].kind == "call" and part.group not in drawing.fused:
                    self._calls.add(part.group)
                self._closed[groups[part.group].path] = ~part.group
                if groups[part.group].has_only_leaves:
                    self._lone.add(groups[part.group].path)
                self._repeated |= {groups[number].path for number in part.repeats}
            elif isinstance(part, Open) and part.group is not None:
                self._opened[groups[part.group].path] = (*path, part.group) if part.framed else path
                self._repeated |= {groups[number].path for number in part.repeats}

    def closed_group(self, row: Untracked) -> int | None:
        """Return the key of the closed group that contains a call; None if there is none.

        A closed group that contains only the parameters of a called module is this module's box.
        """
        if row.kind == "module" and row.label in self._lone:
            return self._closed[row.label]
        return next((self._closed[p] for p in _enclosing_modules(row) if p in self._closed), None)

    def closed_call(self, row: Untracked, ends: Collection[tuple[str, int]]) -> int | None:
        """Return the key of the closed function call that alone uses the result of a call on data.

        Such a call on data is part of what the function computes, and has no box.

        Args:
            row: the entry.
            ends: the drawn elements ("key", key) and entries ("stub", index) that use it.
        """
        if row.kind == "function" and not row.sources and len(ends) == 1:
            [(kind, key)] = ends
            if kind == "key" and ~key in self._calls:
                return key
        return None

    def is_repeated(self, row: Untracked) -> bool:
        """Return True if a call is inside a block that is not drawn because an identical one is."""
        return any(path in self._repeated for path in _enclosing_modules(row))

    def frames(self, row: Untracked) -> tuple[int, ...]:
        """Return the open groups that contain a call, outermost first."""
        return next((self._opened[p] for p in _enclosing_modules(row) if p in self._opened), ())


def _enclosing_modules(row: Untracked) -> Iterator[str]:
    """Yield the paths of the modules that contain a call, innermost first."""
    if row.kind == "data":
        return
    path = row.label.rpartition(".")[0] if row.kind == "module" else row.module
    while path:
        yield path
        path = path.rpartition(".")[0]
