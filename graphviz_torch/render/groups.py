"""Groups: the tree that every collapsed drawing of a graph uses.

Modules make the tree where they were recorded, one group for each call. Where a level holds more
than a reader can take in, it is cut along the topological order: first into the repeats of a body
(the steps of a loop, blocks without names), then into runs of equal size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Literal, NamedTuple

from ..graph import Graph
from .repeats import find_repeats
from .uncollected import uncollected

# A smaller body is not worth a group of its own: runs are cut at its multiples instead.
_SMALLEST_BODY = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are drawn as one while it is closed."""

    id: int
    name: str  # one segment: "layers", "attn#2", "repeat 3", "nodes 101-200"
    path: str  # unique, without "/": a module's scope; a run's name behind what is around it
    parent: int | None
    kind: Literal["module", "run"]
    children: tuple[int, ...]  # groups directly inside, in topological order
    nodes: tuple[int, ...]  # nodes directly inside, in id order
    size: int  # number of all nodes inside
    like: int  # id of the first group of the same structure; its own where it is the first


@dataclass(frozen=True, slots=True)
class Groups:
    """A tree of groups over the nodes of one graph; parents come before their children."""

    groups: tuple[Group, ...]
    of: tuple[int | None, ...]  # innermost group of each node; None: directly at the top
    roots: tuple[int, ...]  # groups at the top, in topological order
    nodes: tuple[int, ...]  # nodes directly at the top, in id order
    places: tuple[int, ...]  # of each node in the topological order that the tree follows


def group(graph: Graph, *, limit: int = 100) -> Groups:
    """The groups of a graph; no level has more than `limit` groups and nodes directly inside.

    A leaf belongs to the group of its first user. Two groups are alike when the operations inside,
    their outputs, the leaves that feed them and the edges between them agree; names may differ.

    Raises:
        ValueError: if `limit` is less than 4.
    """
    if limit < 4:
        raise ValueError(f"limit={limit} leaves no room for groups: give at least 4.")
    with uncollected():
        top, parts = _modules(graph, _near_users(graph))
        order = _flatten(top)
        cutter = _Cutter(graph, order, limit)
        for part in reversed(parts):
            part.items = cutter.cut(part.items)
            cutter.close(part)
        return _number(graph, cutter.cut(top), order)


class _Part:
    """A group while the tree grows. Its items are parts, and nodes as their ids."""

    __slots__ = ("items", "kind", "name", "span", "structure")

    def __init__(self, kind: Literal["module", "run"], name: _Name, items: list[_Item]) -> None:
        self.kind = kind
        self.name = name
        self.items = items
        self.span = (0, 0)  # positions of its operations
        self.structure = 0  # the same number for the same structure


class _Name(NamedTuple):
    """A name that can be joined with that of a later group: "repeat 1" and "repeat 9"."""

    text: str
    stem: str
    first: int
    last: int


_Item = _Part | int


def _named(text: str) -> _Name:
    stem, digits = re.fullmatch(r"(.*?)(\d*)", text, re.S).groups()  # type: ignore[union-attr]
    number = int(digits) if digits else 1
    return _Name(text, stem if digits else f"{text}#", number, number)


def _near_users(graph: Graph) -> list[int]:
    """All nodes in a topological order in which what a step of a loop reads stands in that step.

    It goes back from the outputs, the longest way first: so a short branch, such as the input of
    one step, comes right before its user and not before the whole loop.
    """
    inputs: list[list[int]] = [[] for _ in graph.nodes]
    ends = [True] * len(graph.nodes)
    for source, target, _, _ in graph.edges:
        inputs[target].append(source)
        ends[source] = False
    depth = [0] * len(graph.nodes)
    for i, sources in enumerate(inputs):
        if sources:
            depth[i] = 1 + max([depth[source] for source in sources])
            if len(sources) > 1:
                sources.sort(key=depth.__getitem__)  # the last is taken first
    order: list[int] = []
    seen = [False] * len(graph.nodes)
    stack = [i for i in reversed(range(len(graph.nodes))) if ends[i]]
    while stack:
        i = stack[-1]
        if seen[i]:
            stack.pop()
            continue
        while inputs[i] and seen[inputs[i][-1]]:
            inputs[i].pop()
        if inputs[i]:
            stack.append(inputs[i].pop())
        else:
            seen[i] = True
            order.append(i)
            stack.pop()
    return order


def _modules(graph: Graph, order: list[int]) -> tuple[list[_Item], list[_Part]]:
    """The top level and all modules, outer ones first; a leaf stands just before its first user."""
    place = {i: position for position, i in enumerate(order)}
    first: dict[int, int] = {}
    for source, target, _, _ in graph.edges:
        # A graph made by hand may have a leaf that a leaf reads: it stands where its scope says.
        usual = graph.nodes[source].leaf and not graph.nodes[target].leaf
        if usual and place[target] < place.get(first.get(source, -1), len(place)):
            first[source] = target
    leaves: dict[int, list[int]] = {}
    for leaf, user in sorted(first.items()):
        leaves.setdefault(user, []).append(leaf)
    top: list[_Item] = []
    parts: list[_Part] = []
    levels: dict[str, list[_Item]] = {"": top}

    def enter(scope: str) -> list[_Item]:
        segments = scope.split(".")
        level = top
        for depth, segment in enumerate(segments, 1):
            path = ".".join(segments[:depth])
            if path not in levels:
                part = _Part("module", _named(segment), [])
                level.append(part)
                parts.append(part)
                levels[path] = part.items
            level = levels[path]
        return level

    for node in map(graph.nodes.__getitem__, order):
        if node.id not in first:
            level = levels.get(node.scope)
            if level is None:
                level = enter(node.scope)
            level.extend(leaves.get(node.id, ()))
            level.append(node.id)
    return top, parts


def _flatten(items: Sequence[_Item]) -> list[int]:
    nodes: list[int] = []
    stack = list(reversed(items))
    while stack:
        item = stack.pop()
        if isinstance(item, int):
            nodes.append(item)
        else:
            stack.extend(reversed(item.items))
    return nodes


class _Cutter:
    """Cuts levels to at most `limit` items, and tells which parts are of the same structure.

    A position is the place of an operation in the flattened tree. Cutting keeps the order, so every
    part holds consecutive positions.
    """

    def __init__(self, graph: Graph, order: list[int], limit: int) -> None:
        self.nodes = graph.nodes
        self.limit = limit
        self.known: dict[object, int] = {}  # structure -> its number
        operations = [i for i in order if not graph.nodes[i].leaf]
        self.position = {i: position for position, i in enumerate(operations)}
        sources: list[list[tuple[int, int, int]]] = [[] for _ in operations]
        leaves: list[list[object]] = [[] for _ in operations]
        crossing = [0] * (len(operations) + 1)
        for source, target, output_nr, input_nr in graph.edges:
            if target not in self.position:
                continue
            end = self.position[target]
            if graph.nodes[source].leaf:
                leaves[end].append((input_nr, graph.nodes[source].outputs))
                continue
            start = self.position[source]
            sources[end].append((end - start, output_nr, input_nr))
            if start < end:
                crossing[start + 1] += 1
                crossing[end + 1] -= 1
        self.crossing = list(accumulate(crossing))  # edges that pass between p - 1 and p
        self.sources = sources
        self.kind = [
            self._number((graph.nodes[i].name, graph.nodes[i].outputs, tuple(fed)))
            for i, fed in zip(operations, leaves, strict=True)
        ]
        self.whole = [
            self._number((kind, tuple(fed))) for kind, fed in zip(self.kind, sources, strict=True)
        ]
        # How far before its position an operation reads; beyond any part where it reads behind.
        self.reach = [
            max((d if d > 0 else len(order) for d, _, _ in fed), default=0) for fed in sources
        ]

    def _number(self, key: object) -> int:
        return self.known.setdefault(key, len(self.known))

    def close(self, part: _Part) -> None:
        """Fill in where the part lies and its structure, once its items are final."""
        part.span = start, end = self._span(part.items)
        groups = tuple(
            ("" if item.kind == "run" else item.name.text, item.structure)
            for item in part.items
            if isinstance(item, _Part)
        )
        leaves = () if start < end else tuple(self.nodes[i].outputs for i in _flatten([part]))
        inside = tuple(
            self.whole[p] if self.reach[p] <= p - start else self._clipped(p, start, end)
            for p in range(start, end)
        )
        part.structure = self._number((groups, leaves, inside))

    def _clipped(self, p: int, start: int, end: int) -> int:
        """As `whole`, without the edges that come from outside."""
        fed = tuple(source for source in self.sources[p] if p - end < source[0] <= p - start)
        return self._number((self.kind[p], fed))

    def _span(self, items: Sequence[_Item]) -> tuple[int, int]:
        start, end = len(self.kind), 0
        for item in items:
            if isinstance(item, _Part):
                low, high = item.span
            else:
                low = self.position.get(item, -1)
                high = low + 1
            if 0 <= low < high:
                start, end = min(start, low), max(end, high)
        return (start, end) if start < end else (0, 0)

    def cut(self, items: list[_Item]) -> list[_Item]:
        """The items of one level, put into groups until there are at most `limit`."""
        if len(items) <= self.limit:
            return items
        items, size = self._repeats(items)
        return self._runs(items, size)

    def _runs(self, items: list[_Item], size: int) -> list[_Item]:
        while len(items) > self.limit:
            if size == self.limit:
                size = ceil(len(items) / ceil(len(items) / size))
            cuts = [*range(0, len(items), size), len(items)]
            items = [self._run(items[a:b]) for a, b in pairwise(cuts)]
            size = self.limit
        return items

    def _repeats(self, items: list[_Item]) -> tuple[list[_Item], int]:
        """The items with each repeat of a body in a group, and the size for runs of them."""
        units = self._units(items)
        tokens = [
            unit[-1].structure if isinstance(unit[-1], _Part) else self.nodes[unit[-1]].name
            for unit in units
        ]
        size = self.limit
        result: list[_Item] = []
        done = number = 0
        for start, period, length in find_repeats(tokens, shortest=self.limit):
            if period < _SMALLEST_BODY:
                size = self.limit - self.limit % period
                continue
            # The body starts where the fewest edges enter it; of such places, where the last body
            # ends with the loop.
            crossing = [self._crossing(unit) for unit in units[start : start + period]]
            shift = min(range(period), key=lambda s: (crossing[s], (length - s) % period))
            result += [item for unit in units[done : start + shift] for item in unit]
            bodies: list[_Item] = []
            for done in range(start + shift + period, start + length + 1, period):
                number += 1
                body = [item for unit in units[done - period : done] for item in unit]
                name = _Name(f"repeat {number}", "repeat ", number, number)
                bodies.append(self._close(_Part("run", name, body)))
            result += self._runs(bodies, self.limit)
        result += [item for unit in units[done:] for item in unit]
        return result, size

    def _units(self, items: list[_Item]) -> list[list[_Item]]:
        """Each operation or part with the leaves that stand before it."""
        units: list[list[_Item]] = [[]]
        for item in items:
            units[-1].append(item)
            if isinstance(item, _Part) or not self.nodes[item].leaf:
                units.append([])
        return units if units[-1] else units[:-1]

    def _crossing(self, unit: list[_Item]) -> int:
        start, end = self._span(unit)
        return self.crossing[start] if start < end else 0

    def _run(self, items: list[_Item]) -> _Part:
        first, last = (self._name(items[0]), self._name(items[-1]))
        if first.stem == last.stem and first.last < last.first:
            name = _Name("", first.stem, first.first, last.last)
        else:
            start, end = self._span(items)
            name = _Name("", "nodes ", start + 1, max(end, start + 1))
        name = name._replace(text=f"{name.stem}{name.first}-{name.last}")
        return self._close(_Part("run", name, items))

    def _name(self, item: _Item) -> _Name:
        return item.name if isinstance(item, _Part) else _Name("", "", 0, 0)

    def _close(self, part: _Part) -> _Part:
        part.items = self.cut(part.items)
        self.close(part)
        return part


def _number(graph: Graph, top: list[_Item], order: list[int]) -> Groups:
    """The finished values: parents before children, in topological order."""
    parts: list[_Part] = []
    parents: list[int | None] = []
    paths: list[str] = []
    taken: set[str] = set()
    numbers: dict[_Part, int] = {}
    of: list[int | None] = [None] * len(graph.nodes)
    stack: list[tuple[_Part, int | None]] = [(p, None) for p in _parts(reversed(top))]
    while stack:
        part, parent = stack.pop()
        numbers[part] = number = len(parts)
        # "/" separates the segments of names in TensorBoard.
        path = part.name.text.replace("/", "|")
        outer = parent
        while part.kind == "module" and outer is not None and parts[outer].kind == "run":
            outer = parents[outer]
        if outer is not None:
            path = f"{paths[outer]}.{path}"
        while path in taken:
            path += "'"
        taken.add(path)
        parts.append(part)
        parents.append(parent)
        paths.append(path)
        for item in part.items:
            if isinstance(item, int):
                of[item] = number
        stack.extend((p, number) for p in _parts(reversed(part.items)))
    sizes = [sum(isinstance(item, int) for item in part.items) for part in parts]
    for number in reversed(range(len(parts))):
        outer = parents[number]
        if outer is not None:
            sizes[outer] += sizes[number]
    like: dict[int, int] = {}
    groups = tuple(
        Group(
            id=number,
            name=part.name.text,
            path=paths[number],
            parent=parents[number],
            kind=part.kind,
            children=tuple(numbers[p] for p in _parts(part.items)),
            nodes=tuple(sorted(item for item in part.items if isinstance(item, int))),
            size=sizes[number],
            like=like.setdefault(part.structure, number),
        )
        for number, part in enumerate(parts)
    )
    at_top = tuple(sorted(item for item in top if isinstance(item, int)))
    places = [0] * len(order)
    for position, i in enumerate(order):
        places[i] = position
    roots = tuple(numbers[p] for p in _parts(top))
    return Groups(groups, tuple(of), roots, at_top, tuple(places))


def _parts(items: Iterable[_Item]) -> list[_Part]:
    return [item for item in items if isinstance(item, _Part)]
