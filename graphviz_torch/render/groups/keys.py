"""Under which key the nodes of a drawing with groups are drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from .groups import Groups


class Keys:
    """Looks up the key of any node of the graph: one that is drawn, in a closed group, or neither.

    Args:
        tree: all nodes in groups.
        nodes: those that are drawn.
        closed: groups that are drawn closed.
        repeated: the first of groups that are drawn as one, and all of them, itself first.
    """

    def __init__(
        self,
        tree: Groups,
        nodes: Iterable[int],
        closed: Iterable[int],
        repeated: Mapping[int, tuple[int, ...]],
    ) -> None:
        self.tree = tree
        self.repeated = repeated
        self.family = {n: first for first, alike in repeated.items() for n in alike}
        self.shown = set(nodes)
        self.box = {inner: number for number in closed for inner in tree.below(number)}
        # Groups in a hidden one -> that one: the first of its family is drawn for it.
        others = [number for alike in repeated.values() for number in alike[1:]]
        self.hidden = {inner: number for number in others for inner in tree.below(number)}
        operations: Collection[int] = tree.operations if others else ()
        self.position = dict(zip(operations, range(len(operations)), strict=True))
        self.known: dict[int, int | None] = {}
        self.folded: dict[int | None, dict[int, int]] = {}
        self.users: dict[int, int] = {}  # leaf of a hidden group -> the key of its first user
        self._alike: dict[tuple[int, bool], list[int]] = {}

    def of(self, node: int) -> int | None:
        """The key of a node; None for one that is neither drawn nor in a closed group."""
        if node not in self.known:
            self.known[node] = self._find(node)
        return self.known[node]

    def _find(self, node: int) -> int | None:
        groups = self.tree.groups
        number = self.tree.of[node]
        while number in self.hidden and node in self.position:
            there = self.hidden[number]
            # From the end: the first step of a loop may lack what reads one before it.
            end = groups[self.family[there]].span[1]
            place = end + self.position[node] - groups[there].span[1]
            node = self.tree.operations[place]
            number = self.tree.of[node]
        if node in self.shown:
            return node
        return ~self.box[number] if number in self.box else None

    def is_loop(self, family: int) -> bool:
        """Are groups that are drawn as one the steps of a loop, not blocks with own parameters?"""
        alike, groups = self.repeated.get(family, ()), self.tree.groups
        return bool(alike) and (groups[alike[0]].kind == "run" or "#" in groups[alike[-1]].name)

    def alike(self, node: int, *, loops: bool = True) -> list[int]:
        """The nodes that one is drawn for, itself first: its like in each step of a loop.

        Args:
            loops: False for its like in each block with parameters of its own, too.
        """
        if (node, loops) not in self._alike:
            self._alike[node, loops] = self._find_alike(node, loops)
        return self._alike[node, loops]

    def _find_alike(self, node: int, loops: bool) -> list[int]:
        found = [node]
        groups = self.tree.groups
        for outer in self.tree.around(self.tree.of[node]):
            if node not in self.position or outer not in self.repeated:
                continue
            if self.is_loop(outer) or not loops:
                end = groups[outer].span[1]
                places = [self.position[i] - end for i in found]
                spans = [groups[n].span for n in self.repeated[outer]]
                inside = [(last + p, first) for first, last in spans for p in places]
                # The first step may lack the operation.
                found = [self.tree.operations[p] for p, first in inside if p >= first]
        return found

    def between(self, source: int, target: int) -> dict[int, tuple[int, int]]:
        """Families of groups drawn as one, in which an edge goes from one to another: from, to."""
        start, end = self._folded(self.tree.of[source]), self._folded(self.tree.of[target])
        return {f: (n, end[f]) for f, n in start.items() if f in end and end[f] != n}

    def _folded(self, group: int | None) -> dict[int, int]:
        """By family, the groups around a node of a group that are drawn as one with others."""
        if group in self.hidden:  # nothing inside of it is drawn once for others
            group = self.hidden[group]
        if group not in self.folded:
            around = [n for n in self.tree.around(group) if n in self.family]
            self.folded[group] = {self.family[n]: n for n in around}
        return self.folded[group]
