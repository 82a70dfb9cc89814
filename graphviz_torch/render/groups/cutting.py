"""Cutting a level of a graph that holds too much, and telling which parts are alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, isqrt
from typing import Any, Literal, NamedTuple

from ...graph import Edge, Graph
from ..labels import TIMES
from .attributes import distinguishing, only_part_used
from .outlines import differ_in_one_axis, unsized
from .repeats import LEAST_TIMES, find_repeats

# In a level of so many items a loop is looked for, where loops are asked for.
_LOOP = 12
# The number of a call, in the name of a module.
_CALL = re.compile(r"#\d+$")
_NUMBER = re.compile(r"[#\d]+")  # the same, and that of a module in a row
# The name of a run tells at most so many classes of its modules.
_CLASSES = 3
# A row is one of modules where so many of its items are.
_MODULES = 0.25
# A smaller body is not worth a group of its own: runs are cut at its multiples instead.
_SMALLEST_BODY = 3


# A graph is a part of one that was joined from several; a run is what follows each other; a chain
# is operations in a row that its name tells: one, or two in turn, again and again, or views. A
# stack holds groups that are alike and follow each other.
Kind = Literal["graph", "module", "run", "chain", "stack"]


class Part:
    """A group while the tree grows. Its items are parts, and nodes as their ids."""

    __slots__ = ("items", "kind", "module_class", "name", "nodes", "parts", "span", "structure")

    def __init__(self, kind: Kind, name: Name, items: list[Item], module_class: str = "") -> None:
        self.kind = kind
        self.name = name
        self.items = items
        self.module_class = module_class
        # Known once it is closed:
        self.parts: list[Part] = []
        self.nodes: list[int] = []  # by id
        self.span = (0, 0)  # positions of its operations
        self.structure = 0  # the same number for the same structure


class Name(NamedTuple):
    """A name that can be joined with that of a later group: "repeat 1" with "repeat 9"."""

    text: str
    stem: str
    first: int
    last: int


Item = Part | int


class Cutter:
    """Cuts levels to at most `limit` items, and tells which parts are of the same structure.

    A position is the place of an operation in the flattened tree. Cutting keeps the order, so every
    part holds consecutive positions.
    """

    def __init__(
        self,
        graph: Graph,
        edges: Sequence[Edge],
        order: list[int],
        limit: int,
        rows: int | None,
        loops: bool,
    ) -> None:
        nodes = graph.nodes
        self.nodes = nodes
        self.limit = limit
        self.rows = rows
        self.loops = loops
        self.known: dict[object, int] = {}  # structure -> its number
        self.operations = [i for i in order if not nodes[i].leaf]
        count = len(self.operations)
        self.position = position = dict(zip(self.operations, range(count), strict=True))
        # Of each position: what the operation reads, and the first and last position among those.
        self.reads: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
        self.parameters: set[tuple[int, int]] = set()  # a position that reads one, and input_nr
        self.first = list(range(count))
        self.last = [-1] * count
        farthest = list(range(count))  # of each position: the last that reads it
        reads, first, last = self.reads, self.first, self.last
        alone = only_part_used(nodes, edges)
        for edge in edges:
            if edge.target not in position:
                continue
            end = position[edge.target]
            if edge.source not in position:
                reads[end].append((edge.input_nr, nodes[edge.source].outputs))
                if nodes[edge.source].leaf == "parameter":
                    self.parameters.add((end, edge.input_nr))
                continue
            start = position[edge.source]
            output_nr = 0 if edge.source in alone else edge.output_nr
            reads[end].append((end - start, output_nr, edge.input_nr))
            if end > farthest[start]:
                farthest[start] = end
            if start < first[end]:
                first[end] = start
            if start > last[end]:
                last[end] = start
        # How many results pass between each position and the one before it.
        steps = [0] * (count + 2)
        for start, end in enumerate(farthest):
            steps[start + 1] += 1
            steps[end + 1] -= 1
        self.crossing = list(accumulate(steps))
        known = self.known
        # Of each position: the number of what it computes, and of that with all that it reads.
        self.computes = [self._computes(i) for i in self.operations]
        self.whole = [
            known.setdefault((kind, *read), len(known))
            for kind, read in zip(self.computes, reads, strict=True)
        ]

    def _computes(self, i: int) -> int:
        node = self.nodes[i]
        kind = node.name, node.outputs, distinguishing(node.name, node.attributes)
        return self.known.setdefault(kind, len(self.known))

    def close(self, part: Part) -> None:
        """Fill in where the part lies and its structure, once its items are final."""
        part.parts, part.nodes = split(part.items)
        part.span = start, end = self._span(part.items)
        name = _unnumbered if part.kind == "run" else _uncalled
        groups = [
            (name(inner.name.text) if inner.kind == "module" else "", inner.structure)
            for inner in part.parts
        ]
        leaves = () if start < end else tuple(self.nodes[i].outputs for i in flatten([part]))
        inside = self.whole[start:end]
        if start < end and (min(self.first[start:end]) < start or max(self.last[start:end]) >= end):
            for p in range(start, end):
                if self.first[p] < start or self.last[p] >= end:
                    inside[p - start] = self._clipped(p, start, end)
        key = (part.module_class, tuple(groups), leaves, tuple(inside))
        part.structure = self.known.setdefault(key, len(self.known))

    def _clipped(self, p: int, start: int, end: int) -> int:
        """As `whole`, without the edges that come from outside."""
        reads = self._reads_inside(p, start, end)
        return self.known.setdefault((self.computes[p], *reads), len(self.known))

    def _reads_inside(self, p: int, start: int, end: int) -> list[tuple[Any, ...]]:
        return [r for r in self.reads[p] if len(r) == 2 or p - end < r[0] <= p - start]

    def _unite(self, parts: Sequence[Part]) -> None:
        """Give the same structure to parts that differ in the size of one axis alone.

        So do the experts of a mixture, each called on the rows that its router gives it, and the
        steps of a loop over a sequence that grows. Their parameters have the same shapes.
        """
        if len({part.structure for part in parts}) < 2:
            return
        near: dict[object, list[Part]] = {}
        for part in parts:
            start, end = part.span
            if start < end:
                kind = part.kind, part.module_class, end - start, len(part.parts)
                near.setdefault(kind, []).append(part)
        for some in near.values():
            if len({part.structure for part in some}) > 1:
                alike: dict[object, list[Part]] = {}
                for part in some:
                    alike.setdefault(self._outline(part), []).append(part)
                for same in alike.values():
                    if self._differ_in_one_axis(same):
                        for part in same:
                            part.structure = same[0].structure

    def _outline(self, part: Part, start: int | None = None) -> tuple[Any, ...]:
        """What parts must have in common, whatever the sizes are on which they compute.

        Args:
            start: the position of the first operation to tell of; None: that of the part.
        """
        first, end = part.span
        start = first if start is None else start
        groups: list[object] = []
        around = [part]
        for outer in around:  # which grows
            name = _unnumbered if outer.kind == "run" else _uncalled
            for inner in outer.parts:
                called = name(inner.name.text) if inner.kind == "module" else ""
                place = inner.span[0] - start, inner.span[1] - start
                groups.append((called, inner.module_class, *place, len(inner.parts)))
            around += outer.parts
        computes: list[object] = []
        for p in range(start, end):
            reads = self._reads_inside(p, start, end)
            reads = [r for r in reads if len(r) == 3 or (p, r[0]) not in self.parameters]
            node = self.nodes[self.operations[p]]
            if node.operation == "add":  # in whichever order
                reads = sorted([read[:-1] for read in reads])
            computes.append((unsized(node), *reads))
        return (*groups, *computes)

    def _read_by(self, p: int, start: int) -> dict[int, tuple[Any, bool]]:
        """What an operation reads from before `start`, by input_nr: tensors, and is it a leaf."""
        found: dict[int, tuple[Any, bool]] = {}
        for read in self.reads[p]:
            if len(read) == 2:
                found[read[0]] = read[1], True
            elif p - read[0] < start:
                outputs = self.nodes[self.operations[p - read[0]]].outputs
                found[read[2]] = outputs[read[1] : read[1] + 1], False
        return found

    def _differ_in_one_axis(self, parts: Sequence[Part]) -> bool:
        """Do parts of one outline differ in no more than one axis of what each operation computes?

        Their parameters are of the same shapes. Where one reads a parameter, another may read what
        a step before made of it, as in the inner steps of MAML.
        """
        spans = {part.structure: part.span for part in parts}.values()
        least = min([end - start for start, end in spans])
        starts = [end - least for _, end in spans]
        for at in range(least):
            places = [start + at for start in starts]
            if not differ_in_one_axis([self.nodes[self.operations[p]].outputs for p in places]):
                return False
            reads = [self._read_by(p, start) for p, start in zip(places, starts, strict=True)]
            for nr in {nr for read in reads for nr, (_, leaf) in read.items() if leaf}:
                if len({read.get(nr, (None, False))[0] for read in reads}) > 1:
                    return False
        return True

    def _span(self, items: Sequence[Item]) -> tuple[int, int]:
        start, end = next(filter(None, map(self._place, items)), (0, 0))
        _, end = next(filter(None, map(self._place, reversed(items))), (start, end))
        return start, end

    def _place(self, item: Item) -> tuple[int, int] | None:
        """Where an item lies; None for one that holds no operation."""
        if isinstance(item, Part):
            return item.span if item.span[0] < item.span[1] else None
        at = self.position.get(item)
        return None if at is None else (at, at + 1)

    def cut(self, items: list[Item]) -> list[Item]:
        """The items of one level, put into groups until there are at most `limit`."""
        size = self.limit
        self._unite([item for item in items if type(item) is Part])
        if len(items) > (_LOOP if self.loops else self.limit):
            items, size = self._repeats(items)
        if self.rows is not None:
            items = self._handfuls(items, self.rows)
        return self._runs(items, size)

    def _handfuls(self, items: list[Item], most: int) -> list[Item]:
        """Cut a row of modules into runs: at most so many, each as short as that allows.

        What stands between two modules, such as a sum, is in one run with the module before it.
        """
        if len(items) <= most:
            return items
        starts = [i for i, item in enumerate(items) if type(item) is Part and item.kind == "module"]
        if len(starts) <= _MODULES * len(items):
            return items
        first, last = starts[0], starts[-1] + 1
        room = most - first - (len(items) - last)
        if 2 * room < most:  # no place of its own for what stands before the row, and behind it
            first, last, room = 0, len(items), most
        ends = [first, *starts[:: min(self.limit, ceil(len(starts) / room))][1:], last]
        if len(ends) < 3:  # one run of all
            return items
        rows = [items[start:end] for start, end in pairwise(ends)]
        runs = [row[0] if len(row) == 1 else self._run(row) for row in rows]
        return [*items[:first], *runs, *items[last:]]

    def _runs(self, items: list[Item], size: int) -> list[Item]:
        if len(items) <= self.limit:
            return items
        if all(type(item) is Part and item.kind == "graph" for item in items):
            size = min(size, isqrt(len(items)))  # to open some, and list them
        while len(items) > self.limit:
            if size == self.limit:
                size = ceil(len(items) / ceil(len(items) / size))
            cuts = [*range(0, len(items), size), len(items)]
            items = [self._run(items[a:b]) for a, b in pairwise(cuts)]
            size = self.limit
        return items

    def _repeats(self, items: list[Item]) -> tuple[list[Item], int]:
        """The items with each repeat of a body in a group, and the size for runs of them."""
        tokens, ends = self._units(items)
        size = self.limit
        result: list[Item] = []
        done = number = 0
        shortest = _LOOP if self.loops else self.limit
        for start, period, length in find_repeats(tokens, shortest=shortest):
            begin = self._first_operation(items, ends[start])
            row = items[begin : ends[start + length - length % period]]
            plain = not any(type(item) is Part for item in row)
            if period < _SMALLEST_BODY and (plain or period == 1 or not self.loops):
                size = self.limit - self.limit % period
                if plain and self._in_step(row, period):
                    result += [*items[ends[done] : begin], self._chain(row, period, size)]
                    done = start + length - length % period
                continue
            # The body starts where the fewest results enter it, once the loop runs; of such places,
            # where the last body ends with the loop.
            units = pairwise(ends[start + period : start + 2 * period + 1])
            crossing = [self.crossing[self._span(items[a:b])[0]] for a, b in units]
            shift = min(range(period), key=lambda s: (crossing[s], (length - s) % period))
            starts = range(start + shift, start + length - period + 1, period)
            rows = (items[ends[at] : ends[at + period]] for at in starts)
            bodies = [self._close(Part("run", _repeat(0), row)) for row in rows]
            self._unite(bodies)
            first = self._first_step(items[ends[start] : ends[start + shift]], bodies)
            steps = [*first, *bodies]
            if len(steps) < LEAST_TIMES:
                continue
            if len(items) <= self.limit and 2 * len({b.structure for b in bodies}) > len(bodies):
                continue  # they are hardly alike, and there is room for them
            result += items[ends[done] : ends[start + (0 if first else shift)]]
            for step in steps:
                number += 1
                step.name = _repeat(number)
            result += self._runs([*steps], self.limit)
            done = start + shift + len(bodies) * period
        return result + items[ends[done] :], size

    def _first_step(self, items: list[Item], bodies: Sequence[Part]) -> list[Part]:
        """The first step of a loop, where it lacks only the operations that read one before it.

        It has the structure of the others, and is drawn as one of them.
        """
        (start, end), body = self._span(items), bodies[-1].span
        if not self.loops or 2 * (end - start) < body[1] - body[0]:
            return []
        lacking = range(body[0], body[1] - (end - start))
        if not all(any(len(read) == 3 for read in self.reads[p]) for p in lacking):
            return []  # what reads a parameter alone is in every step
        part = self._close(Part("run", bodies[0].name, items))
        same = self._outline(part) == self._outline(bodies[-1], body[1] - (end - start))
        if not same or not self._differ_in_one_axis([part, *bodies]):
            return []
        part.structure = bodies[0].structure
        return [part]

    def _first_operation(self, items: list[Item], start: int) -> int:
        """Where a chain begins: the leaves that its first operation reads stand before it."""
        leaf = (type(item) is int and item not in self.position for item in items[start:])
        return start + next(at for at, skipped in enumerate(leaf) if not skipped)

    def _in_step(self, items: list[Item], period: int) -> bool:
        """Does each operation read as many tensors as its like before it?"""
        reads = [len(self.reads[self.position[i]]) for i in flatten(items) if i in self.position]
        return reads[period:-period] == reads[2 * period :]

    def _chain(self, items: list[Item], period: int, size: int) -> Part:
        """The group of a row that does one operation, or two in turn; its name counts them."""
        operations = [self.nodes[i] for i in flatten(items) if i in self.position]
        body = ", ".join(node.title for node in operations[:period])
        text = f"{body} {TIMES} {len(operations) // period:,}"
        part = Part("chain", Name(text, f"{text}#", 1, 1), self._runs(items, size))
        self.close(part)
        return part

    def _units(self, items: list[Item]) -> tuple[list[object], list[int]]:
        """Each operation or part, with the leaves before it: a token for it, and where units end.

        Leaves at the end of all belong to no unit.
        """
        tokens: list[object] = []
        ends = [0]
        parts = [item for item in items if type(item) is Part]
        names = Counter([_uncalled(part.name.text) for part in parts])
        for end, item in enumerate(items, 1):
            if type(item) is Part:
                name = _uncalled(item.name.text)
                call = item.kind == "module" and names[name] > 1
                size = item.span[1] - item.span[0]
                # A call of a model with its parameters, and one with what a step made of them.
                tokens.append((name, item.module_class, size) if call else item.structure)
                ends.append(end)
            elif item in self.position:
                tokens.append(self.nodes[item].name)
                ends.append(end)
        return tokens, ends

    def _run(self, items: list[Item]) -> Part:
        parts, nodes = split(items)
        start, end = self._span(items)
        name = Name("", "operations ", start + 1, max(end, start + 1))
        if len(parts) > 1:
            name = _joined(parts[0].name, parts[-1].name)
        elif parts:
            also = self.nodes[nodes[0]].title if len(nodes) == 1 else f"{len(nodes)} nodes"
            name = parts[0].name._replace(text=f"{parts[0].name.text} and {also}")
        text = name.text or f"{name.stem}{name.first}-{name.last}"
        return self._close(Part("run", name._replace(text=text), items, _common_class(parts)))

    def _close(self, part: Part) -> Part:
        part.items = self.cut(part.items)
        self.close(part)
        return part


def _repeat(number: int) -> Name:
    return Name(f"repeat {number}", "repeat ", number, number)


def _joined(first: Name, last: Name) -> Name:
    """The name of all from one to another."""
    if first.stem == last.stem and first.last < last.first:
        return Name("", first.stem, first.first, last.last)
    text = f"{first.text.partition(' … ')[0]} … {last.text.rpartition(' … ')[2]}"
    return Name(text, f"{text}#", 1, 1)


def _common_class(parts: list[Part]) -> str:
    """The classes of modules, without their arguments, where they are few."""
    classes = dict.fromkeys(part.module_class.partition("(")[0] for part in parts)
    return ", ".join(classes) if len(classes) <= _CLASSES and "" not in classes else ""


@lru_cache(maxsize=4096)  # a model has many alike
def _uncalled(name: str) -> str:
    """The name of a module without the number of the call."""
    return _CALL.sub("", name)


@lru_cache(maxsize=4096)
def _unnumbered(name: str) -> str:
    """The same without its number in a row of modules."""
    return _NUMBER.sub("", name)


def split(items: list[Item]) -> tuple[list[Part], list[int]]:
    """The parts in their order, and the nodes by id."""
    parts = [item for item in items if type(item) is Part]
    return parts, sorted([item for item in items if type(item) is int])


def flatten(items: Sequence[Item]) -> list[int]:
    """The nodes in items and in all parts below, in order."""
    nodes = [item for item in items if not isinstance(item, Part)]
    if len(nodes) == len(items):
        return nodes
    nodes.clear()
    stack = list(reversed(items))
    while stack:
        item = stack.pop()
        if isinstance(item, Part):
            stack.extend(reversed(item.items))
        else:
            nodes.append(item)
    return nodes
