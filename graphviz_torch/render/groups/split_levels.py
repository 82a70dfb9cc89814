"""Split levels of the group tree that have too many items, for example at repetitions.

A level consists of the direct children of a group. These items are groups or nodes. A repetition is
a "body" of items that follows itself three or more times. The first occurrence may lack items at
the beginning of the body.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import islice, pairwise
from math import ceil, isqrt
from operator import eq

from ...graph.immutable import NamedTuple
from ..labels import TIMES
from .call_groups import Item, Part, RangeName, flatten, split
from .isomorphism import Structure, without_call_number

_MIN_ITEMS_LOOP = 12  # a level with fewer items is not searched for loops
_MAX_CLASSES_NAMED = 3  # maximum number of module classes in the name of a run
# A level is a row of modules if more than this fraction of its items are modules.
_MIN_MODULE_SHARE = 0.25
# Each repetition of a body (repeated items) gets a group if the body has at least this many items.
# If it has fewer, the level is split into runs (groups of consecutive items) of several bodies
# each.
_MIN_BODY = 3


class LevelSplitter:
    """A function object that groups the items of a level until at most `limit` remain."""

    def __init__(self, structure: Structure, limit: int, rows: int | None, loops: bool) -> None:
        self.structure = structure
        self.nodes = structure.nodes
        self.limit = limit
        self.rows = rows
        self.loops = loops

    def split(self, items: list[Item]) -> list[Item]:
        """Return the items of a level, grouped so that at most `limit` items remain."""
        size = self.limit
        parts = [item for item in items if type(item) is Part]
        if len(parts) > 1:
            self.structure.unite(parts)
        if len(items) > (_MIN_ITEMS_LOOP if self.loops else self.limit):
            items, size = self._repeats(items)
        if self.rows is not None and len(items) > self.rows:
            items = self._short_runs(items, self.rows)
        return items if len(items) <= self.limit else self._runs(items, size)

    def _short_runs(self, items: list[Item], most: int) -> list[Item]:
        """Split a row of modules into about `most` short runs of equal size.

        An operation between two modules, such as an addition, belongs to the run of the module
        before the operation.
        """
        starts = [i for i, item in enumerate(items) if type(item) is Part and item.kind == "module"]
        if not is_row(len(starts), len(items)):
            return items
        first, last = starts[0], starts[-1] + 1
        count = most - first - (len(items) - last)
        # Items before the first module are put into runs as well if there are more than `most / 2`
        # of them. The same is true for items after the last module.
        if 2 * count < most:
            first, last, count = 0, len(items), most
        ends = [first, *starts[:: min(self.limit, ceil(len(starts) / count))][1:], last]
        if len(ends) < 3:  # a single run
            return items
        rows = [items[start:end] for start, end in pairwise(ends)]
        runs = [row[0] if len(row) == 1 else self._run(row) for row in rows]
        return [*items[:first], *runs, *items[last:]]

    def _runs(self, items: list[Item], size: int) -> list[Item]:
        if len(items) <= self.limit:
            return items
        if all(type(item) is Part and item.kind == "graph" for item in items):
            # Many backward passes are split into small groups, so that a reader who opens one group
            # still sees the titles of the others.
            size = min(size, isqrt(len(items)))
        while len(items) > self.limit:
            if size == self.limit:
                size = ceil(len(items) / ceil(len(items) / size))
            cuts = [*range(0, len(items), size), len(items)]
            items = [self._run(items[a:b]) for a, b in pairwise(cuts)]
            size = self.limit
        return items

    def _repeats(self, items: list[Item]) -> tuple[list[Item], int]:
        """Put each repetition of a body into a group; return the items, and the size of later runs.

        A body is a sequence of items that repeats, such as a step of a loop.
        """
        structure = self.structure
        tokens, ends = self._units(items)
        size = self.limit
        result: list[Item] = []
        done = number = 0
        shortest = _MIN_ITEMS_LOOP if self.loops else self.limit
        for start, period, length in find_repeats(tokens, shortest=shortest):
            begin = self._first_operation(items, ends[start])
            row = items[begin : ends[start + length - length % period]]
            plain = not any(type(item) is Part for item in row)
            if period < _MIN_BODY and (plain or period == 1 or not self.loops):
                size = self.limit - self.limit % period
                if plain and self._reads_equally(row, period):
                    result += [*items[ends[done] : begin], self._chain(row, period, size)]
                    done = start + length - length % period
                continue
            # A body may start at any position within a period. The best position is crossed by the
            # fewest results, that is, by results computed before the position and used after it. If
            # several positions are equally good, choose the one with which the last body ends where
            # the loop ends.
            units = pairwise(ends[start + period : start + 2 * period + 1])
            crossing = [
                self.structure.crossing[self.structure.span(items[a:b])[0]] for a, b in units
            ]
            shift = min(range(period), key=lambda s: (crossing[s], (length - s) % period))
            starts = range(start + shift, start + length - period + 1, period)
            rows = (items[ends[at] : ends[at + period]] for at in starts)
            bodies = [self._close(Part("run", _repeat_name(0), row)) for row in rows]
            structure.unite(bodies)
            first = self._first_step(items[ends[start] : ends[start + shift]], bodies)
            steps = [*first, *bodies]
            if len(steps) < MIN_TIMES:
                continue
            if len(items) <= self.limit and 2 * len({b.structure for b in bodies}) > len(bodies):
                continue  # most repetitions differ, and the level is small enough without groups
            result += items[ends[done] : ends[start + (0 if first else shift)]]
            for step in steps:
                number += 1
                step.name = _repeat_name(number)
            result += self._runs([*steps], self.limit)
            done = start + shift + len(bodies) * period
        return result + items[ends[done] :], size

    def _first_step(self, items: list[Item], bodies: Sequence[Part]) -> list[Part]:
        """Return a list with a group for the first step of a loop, or an empty list.

        The first step may lack operations that read an earlier step. Its group gets the structure
        of the other steps, so that all steps are drawn as one. The list is empty if `items` differ
        from the other steps in any other way.

        Args:
            items: the items before the other steps.
            bodies: the other steps.
        """
        structure, body = self.structure, bodies[-1].span
        start, end = structure.span(items)
        if not self.loops or 2 * (end - start) < body[1] - body[0]:
            return []
        lacking = range(body[0], body[1] - (end - start))
        if not all(any(len(read) == 3 for read in structure.reads[p]) for p in lacking):
            # Only operations that read an earlier step can be missing in the first step.
            return []
        part = self._close(Part("run", bodies[0].name, items))
        same = self.structure.size_free_structure(part) == self.structure.size_free_structure(
            bodies[-1], body[1] - (end - start)
        )
        if not same or not self.structure.differ_in_one_axis([part, *bodies]):
            return []
        part.structure = bodies[0].structure
        return [part]

    def _first_operation(self, items: list[Item], start: int) -> int:
        """Return the index of the first item from `start` on that is not a leaf."""
        leaf = (type(item) is int and self.nodes[item].leaf for item in items[start:])
        return start + next(at for at, skipped in enumerate(leaf) if not skipped)

    def _reads_equally(self, items: list[Item], period: int) -> bool:
        """Return True if each operation has as many inputs as the one `period` positions before it.

        The first period is ignored.
        """
        places = [self.structure.position[i] for i in flatten(items)]
        reads = [len(self.structure.reads[place]) for place in places if place >= 0]
        return reads[period:-period] == reads[2 * period :]

    def _chain(self, items: list[Item], period: int, size: int) -> Part:
        """Return a group for a repeated operation or pair, named by their titles and a count.

        Args:
            items: the repeated operations, and their leaves.
            period: number of operations that repeat.
            size: maximum number of items in a run of the group.
        """
        operations = [self.nodes[i] for i in flatten(items) if not self.nodes[i].leaf]
        body = ", ".join(node.title for node in operations[:period])
        text = f"{body} {TIMES} {len(operations) // period:,}"
        part = Part("chain", RangeName(text, f"{text}#", 1, 1), self._runs(items, size))
        self.structure.close(part)
        return part

    def _units(self, items: list[Item]) -> tuple[list[object], list[int]]:
        """Return a token for each unit, and the index in `items` at which each unit ends.

        A unit is an operation or a part, together with the leaves before it. Units with equal
        tokens may be repetitions of each other. Leaves at the end of `items` belong to no unit.
        """
        tokens: list[object] = []
        ends = [0]
        parts = [item for item in items if type(item) is Part]
        names = Counter([without_call_number(part.name.text) for part in parts])
        for end, item in enumerate(items, 1):
            if isinstance(item, Part):
                name = without_call_number(item.name.text)
                call = item.kind == "module" and names[name] > 1
                size = item.span[1] - item.span[0]
                # Calls of one module may differ in structure. In MAML, the first call reads
                # parameters, and later calls read tensors that an inner step computed from the
                # parameters.
                tokens.append((name, item.module_class, size) if call else item.structure)
                ends.append(end)
            elif not self.nodes[item].leaf:
                tokens.append(self.nodes[item].name)
                ends.append(end)
        return tokens, ends

    def _run(self, items: list[Item]) -> Part:
        parts, nodes = split(items)
        start, end = self.structure.span(items)
        name = RangeName("", "operations ", start + 1, max(end, start + 1))
        if len(parts) > 1:
            name = _range_name(parts[0].name, parts[-1].name)
        elif parts:
            also = self.nodes[nodes[0]].title if len(nodes) == 1 else f"{len(nodes)} nodes"
            name = parts[0].name._replace(text=f"{parts[0].name.text} and {also}")
        text = name.text or f"{name.stem}{name.first}-{name.last}"
        return self._close(Part("run", name._replace(text=text), items, _common_class(parts)))

    def _close(self, part: Part) -> Part:
        part.items = self.split(part.items)
        self.structure.close(part)
        return part


def is_row(modules: int, items: int) -> bool:
    """Return True if a level has so many modules that it is treated as a row of modules.

    Args:
        modules: number of modules in the level.
        items: number of all items in the level.
    """
    return modules > _MIN_MODULE_SHARE * items


def _repeat_name(number: int) -> RangeName:
    return RangeName(f"repeat {number}", "repeat ", number, number)


def _range_name(first: RangeName, last: RangeName) -> RangeName:
    """Return the name of a range of groups from the names of the first and the last group."""
    if first.stem == last.stem and first.last < last.first:
        return RangeName("", first.stem, first.first, last.last)
    text = f"{first.text.partition(' … ')[0]} … {last.text.rpartition(' … ')[2]}"
    return RangeName(text, f"{text}#", 1, 1)


def _common_class(parts: list[Part]) -> str:
    """Return the distinct classes of modules, without arguments.

    Return "" if there are too many classes, or if one is unknown.
    """
    classes = dict.fromkeys(part.module_class.partition("(")[0] for part in parts)
    return ", ".join(classes) if len(classes) <= _MAX_CLASSES_NAMED and "" not in classes else ""


# If this many consecutive tokens occur twice, the distance between the two occurrences is a
# candidate for the period. A shorter sequence, such as a pair of operations, may occur twice inside
# one body.
_MATCH_LENGTH = 8
_SEARCH_STEP = 4  # distance of the positions at which a search for recurring tokens starts
_MAX_CANDIDATES = 6  # maximum number of candidate periods to check
# Maximum fraction of the body that may be missing in the first occurrence. For example, the first
# step of a loop lacks the operations that read an earlier step.
_MAX_LACKING = 0.25
MIN_TIMES = 3


class Repeat(NamedTuple):
    """A repetition of a body of `period` tokens: `length` tokens, from index `start` on."""

    start: int
    period: int
    length: int


def find_repeats(tokens: Sequence[Hashable], *, shortest: int = 100) -> list[Repeat]:
    """Return the repetitions in a sequence, in order and without overlaps.

    The search first finds the longest repetition. Then it continues in the tokens before and the
    tokens after this repetition, if there are more than `shortest` of them.

    >>> find_repeats("xyz" + "abcde" * 4 + "z", shortest=8)
    [Repeat(start=3, period=5, length=20)]
    """
    # Each distinct token becomes a character, because searching a string is fast. If there are more
    # distinct tokens than characters (1,114,112), the remaining tokens share the last character.
    known: dict[Hashable, str] = {}
    text = "".join(
        [known.setdefault(token, chr(min(len(known), sys.maxunicode))) for token in tokens]
    )
    found = []
    left = [(0, len(text))]
    while left:
        start, end = left.pop()
        best = _longest(text[start:end], shortest) if end - start > shortest else None
        if best is not None:
            first = start + best.start
            found.append(Repeat(first, best.period, best.length))
            left += [(start, first), (first + best.length, end)]
    return sorted(found)


def _longest(text: str, shortest: int) -> Repeat | None:
    distances: Counter[int] = Counter()
    for place in range(0, len(text) - _MATCH_LENGTH, _SEARCH_STEP):
        again = text.find(text[place : place + _MATCH_LENGTH], place + 1)
        if again > 0:
            distances[again - place] += 1
    best = None
    for period, _ in distances.most_common(_MAX_CANDIDATES):
        same = bytes(map(eq, text, islice(text, period, None)))
        run = max(same.split(b"\0"), key=len)
        if len(run) < (MIN_TIMES - 1 - _MAX_LACKING) * period:
            continue
        repeat = Repeat(same.index(run), period, len(run) + period)
        if best is None or (repeat.length, -period) > (best.length, -best.period):
            best = repeat
        if best.length > len(text) - shortest:
            break  # the remaining tokens are too few for another repetition
    return best
