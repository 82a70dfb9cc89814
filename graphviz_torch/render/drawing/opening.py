"""Which groups of a collapsed drawing are open, closed, or hidden behind one that is alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from ..groups.groups import Groups

# A row of groups is short when folded if it has at most so many structures for each run of it.
_KINDS = 3

# Of a node: how many findings name it, how many copies between devices it makes, and the bytes that
# it keeps for backward.
Interest = tuple[int, int, int]
_NOTHING: Interest = (0, 0, 0)


class Opener:
    """Opens groups of a tree; afterwards it holds what is open, closed and hidden."""

    def __init__(
        self,
        tree: Groups,
        folded: Collection[int],
        fold: bool,
        interest: Mapping[int, Interest] = MappingProxyType({}),
    ) -> None:
        self.tree = tree
        self.interest = interest
        self.members: dict[int, list[int]] = {}  # those that are drawn as their first
        self.folded = folded  # nodes written inside others
        self.fold = fold  # whether groups that are alike are drawn as one
        self.opened: set[int] = set()
        self.closed: list[int] = []
        self.nodes: list[int] = []
        self.family: dict[int, int] = {}  # group -> the first of those it is drawn with
        self.hidden: list[int] = []

    def open(self, start: int | None, depth: int | None, budget: int | None) -> None:
        """Open groups from `start`: `depth` levels, or up to `budget` things.

        The most interesting come first, then outer ones before inner ones.
        """
        waiting = [(self._rank(number, 0), 0, number) for number in self._show(start)]
        heapify(waiting)
        shown = len(waiting) + len(self.nodes)
        while waiting:
            _, below, number = heappop(waiting)
            inside = self._count(number)
            if (depth is not None and below >= depth) or (
                budget is not None and shown + inside - 1 > budget
            ):
                self.closed.append(number)
                continue
            shown += inside - 1
            for inner in self._show(number):
                heappush(waiting, (self._rank(inner, below + 1), below + 1, inner))

    def _rank(self, number: int, below: int) -> tuple[float, ...]:
        """Smaller is opened sooner."""
        worth = [
            sum(self.interest.get(i, _NOTHING)[k] for n in members for i in self._nodes(n))
            for members in [self.members.get(number, (number,)) if self.interest else ()]
            for k in range(3)
        ]
        found, moved, saved = worth
        return -min(found, 1), -min(moved, 1), below, -saved, number

    def _nodes(self, number: int) -> Iterator[int]:
        for inner in self.tree.below(number):
            yield from self.tree.groups[inner].nodes

    def _count(self, number: int) -> int:
        part = self.tree.groups[number]
        nodes = sum(i not in self.folded for i in part.nodes)
        return nodes + len(self._families(self._unpacked(part.children)))

    def _unpacked(self, children: tuple[int, ...]) -> tuple[int, ...]:
        """Groups without the runs that only hold a long row of them: folded, the row is short."""
        groups = self.tree.groups
        rows = [groups[n] for n in children if groups[n].kind == "run" and not groups[n].nodes]
        kinds = {groups[inner].like for row in rows for inner in row.children}
        if not self.fold or not rows or len(kinds) > _KINDS * len(rows):
            return children
        found: list[int] = []
        for number in children:
            part = groups[number]
            found += part.children if part in rows else [number]
        return self._unpacked(tuple(found))

    def _show(self, number: int | None) -> list[int]:
        if number is None:
            children, nodes = self.tree.roots, self.tree.nodes
        else:
            children, nodes = self.tree.groups[number].children, self.tree.groups[number].nodes
            self.opened.add(number)
        children = self._unpacked(children)
        self.nodes += [i for i in nodes if i not in self.folded]
        families = self._families(children)
        for members in families:
            if len(members) > 1:
                self.members[members[0]] = members
                self.family.update(dict.fromkeys(members, members[0]))
                self.hidden += members[1:]
        return [members[0] for members in families]

    def _families(self, children: Iterable[int]) -> list[list[int]]:
        """Groups that follow each other, are alike, and have no operation between them."""
        if not self.fold:
            return [[child] for child in children]
        groups = self.tree.groups
        families: list[list[int]] = []
        for child in children:
            part = groups[child]
            last = groups[families[-1][-1]] if families else None
            if last is not None and last.like == part.like and last.span[1] == part.span[0]:
                families[-1].append(child)
            else:
                families.append([child])
        return families
