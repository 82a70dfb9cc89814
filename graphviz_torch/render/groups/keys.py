"""Find the drawn element that shows a node: the node's own box, or a closed group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from .groups import Groups


class Keys:
    """A lookup from node ids to the keys of drawn elements.

    Args:
        tree: the groups of the graph.
        nodes: ids of the nodes with a box.
        closed: ids of the closed groups.
        repeated: first group of each family -> all groups of the family. A family consists of
            identical groups, of which only the first is drawn; the others are hidden.
        host: returns the node whose box shows a node.
    """

    def __init__(
        self,
        tree: Groups,
        nodes: Iterable[int],
        closed: Iterable[int],
        repeated: Mapping[int, tuple[int, ...]],
        host: Callable[[int], int],
    ) -> None:
        self.tree = tree
        self.host = host
        self.repeated = repeated
        self.family = {n: first for first, alike in repeated.items() for n in alike}
        self.shown = set(nodes)
        self.box = {inner: number for number in closed for inner in tree.with_descendants(number)}
        # Hidden group, and each group inside it -> the hidden group.
        others = [number for alike in repeated.values() for number in alike[1:]]
        self.hidden = {
            inner: number for number in others for inner in tree.with_descendants(number)
        }
        operations: Collection[int] = tree.operations if others else ()
        self.position = dict(zip(operations, range(len(operations)), strict=True))
        self.known: dict[int, int | None] = {}
        self.folded: dict[int | None, dict[int, int]] = {}
        # leaf in a hidden group -> key of the element that shows the leaf's first user
        self.users: dict[int, int] = {}
        self._alike: dict[tuple[int, bool], list[int]] = {}

    def key(self, node: int) -> int | None:
        """Return the key of the element that shows a node; None if no element does."""
        if node not in self.known:
            self.known[node] = self._find(node)
        return self.known[node]

    def _find(self, node: int) -> int | None:
        groups = self.tree.groups
        number = self.tree.of[node]
        while number in self.hidden and node in self.position:
            there = self.hidden[number]
            # Corresponding operations are equally far from the end of their groups, but not from
            # the start: the first step of a loop may lack operations at its beginning.
            end = groups[self.family[there]].span[1]
            place = end + self.position[node] - groups[there].span[1]
            # A view with a name has a box, but its counterpart without a name has none.
            node = self.host(self.tree.operations[place])
            number = self.tree.of[node]
        if node in self.shown:
            return node
        return ~self.box[number] if number in self.box else None

    def is_loop(self, family: int) -> bool:
        """Return True if the groups of a family are steps of a loop.

        Otherwise they are blocks, each with its own parameters.
        """
        alike, groups = self.repeated.get(family, ()), self.tree.groups
        return bool(alike) and (groups[alike[0]].kind == "run" or "#" in groups[alike[-1]].name)

    def represented_nodes(self, node: int, *, loops: bool = True) -> list[int]:
        """Return the nodes that a drawn node represents, itself included.

        Args:
            node: id of the drawn node.
            loops: True to return only the corresponding nodes in the other steps of a loop; False
                to add those in identical blocks, which have their own parameters.
        """
        if (node, loops) not in self._alike:
            self._alike[node, loops] = self._find_represented(node, loops)
        return self._alike[node, loops]

    def _find_represented(self, node: int, loops: bool) -> list[int]:
        found = [node]
        groups = self.tree.groups
        for outer in self.tree.with_ancestors(self.tree.of[node]):
            if node not in self.position or outer not in self.repeated:
                continue
            if self.is_loop(outer) or not loops:
                end = groups[outer].span[1]
                places = [self.position[i] - end for i in found]
                spans = [groups[n].span for n in self.repeated[outer]]
                inside = [(last + p, first) for first, last in spans for p in places]
                # The first step of a loop may lack the operation.
                found = [self.tree.operations[p] for p, first in inside if p >= first]
        return found

    def family_links(self, source: int, target: int) -> dict[int, tuple[int, int]]:
        """Return the families in which an edge connects two different (but identical) groups.

        Args:
            source, target: ids of the edge's nodes.

        Returns:
            First group of the family -> (group of the source, group of the target).
        """
        start, end = (
            self._family_members(self.tree.of[source]),
            self._family_members(self.tree.of[target]),
        )
        return {f: (n, end[f]) for f, n in start.items() if f in end and end[f] != n}

    def _family_members(self, group: int | None) -> dict[int, int]:
        """Return first group of a family -> the group of this family that contains `group`."""
        if group in self.hidden:  # a group inside a hidden group has no family of its own
            group = self.hidden[group]
        if group not in self.folded:
            around = [n for n in self.tree.with_ancestors(group) if n in self.family]
            self.folded[group] = {self.family[n]: n for n in around}
        return self.folded[group]
