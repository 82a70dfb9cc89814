"""The step that opens groups: the interesting ones first, as many as there is room for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from heapq import heapify, heappop, heappush

from ...graph.collective import by_node
from ..groups.keys import Keys
from .drawing import Drawing
from .page import Page
from .tree import Box, Leaf, Open

# Of a group: how many findings name its nodes, how often these send to devices or ranks, and the
# bytes that they keep for backward.
_Worth = tuple[int, int, int]
_NOTHING: _Worth = (0, 0, 0)
_FEW_SHOWN = 8  # things: a picture of fewer says so little that a larger page is better
_FEW = 2  # parameters of a module that has nothing else here: more are one box
_Waiting = tuple[tuple[float, ...], int, int]  # rank, levels around it, group


def open_groups(drawing: Drawing) -> Drawing:
    """The drawing as a tree: `depth` levels of it open, or as many groups as there is room for.

    The most interesting come first, then outer ones before inner ones.
    """
    if drawing.groups is None:
        folded = drawing.inner.folded
        leaves = [Leaf(node.id) for node in drawing.graph.nodes if node.id not in folded]
        return drawing.having(tree=Open(None, tuple(leaves)))
    opening = _Opening(drawing)
    fits = opening.open(drawing.start)
    tree = opening.tree(drawing.start)
    keys = Keys(drawing.groups, tree.nodes, tree.boxes, tree.repeated)
    stacks = opening.page is not None and opening.page.stacks
    return drawing.having(tree=tree, keys=keys, fits=fits, stacks=stacks)


class _Opening:
    def __init__(self, drawing: Drawing) -> None:
        assert drawing.groups is not None
        self.drawing = drawing
        self.groups = drawing.groups
        self.opened: dict[int | None, list[tuple[int, ...]]] = {}  # the families in each
        self.around: dict[int, int | None] = {}  # the open group in which the first of a family is
        self.worth = drawing.worth
        ends = [end for cut in drawing.graph.cuts for end in (cut.before, *cut.after)]
        inner = {self.groups.of[end] for end in ends if end is not None}
        self.cut = {outer for number in inner for outer in self.groups.around(number)}
        self.repeated: set[int] = set()  # groups that stand for others
        self.passed: set[int] = set()  # groups that there was not room for
        self.visible = self._count()  # by group, the nodes that are not written inside others
        paged = drawing.limit is None and drawing.options["depth"] is None
        self.page = Page(drawing) if paged else None

    def _count(self) -> list[int]:
        counts = [0] * len(self.groups.groups)
        folded = self.drawing.inner.folded
        for node, number in enumerate(self.groups.of):
            if number is not None and node not in folded:
                counts[number] += 1
        for part in reversed(self.groups.groups):  # inner ones first
            if part.parent is not None:
                counts[part.parent] += counts[part.id]
        return counts

    def open(self, start: int | None) -> bool:
        """Open what there is room for; returns whether there is room for what must be shown."""
        depth, limit = self.drawing.options["depth"], self.drawing.limit
        if self.page is not None:
            return self._fill(start, self.page)
        # The parts of a graph are open before the modules in them.
        outer = -1 if start is None and self.drawing.graph.segments else 0
        waiting = [(self._rank(alike, outer), outer, alike[0]) for alike in self._show(start)]
        heapify(waiting)
        shown = len(waiting) + len(self._leaves(start))
        while waiting:
            _, below, number = heappop(waiting)
            if number in self.opened or number in self.passed:
                continue
            together = [number] if depth is not None else self._together(number, waiting)
            more = sum(len(self._leaves(n)) + len(self._families(n)) - 1 for n in together)
            if depth is not None:
                if below >= depth:
                    continue
            elif (limit is not None and shown + more > limit) or self._tells_all(number):
                self.passed.update(together)
                continue
            shown += more
            for opened in together:
                for alike in self._show(opened):
                    heappush(waiting, (self._rank(alike, below + 1), below + 1, alike[0]))
        return True

    def _fill(self, start: int | None, page: Page) -> bool:
        """Open groups as long as the page has room for them, or all of them."""
        whole = self.drawing.whole
        waiting = [(self._rank(alike, 0), 0, alike[0]) for alike in self._show(start)]
        heapify(waiting)
        page.show(start, self._items(start))
        shown = len(self._items(start))
        fits = page.open([start], large=not whole)
        groups = self.groups.groups
        while waiting and fits:
            _, below, number = heappop(waiting)
            if number in self.opened or number in self.passed or self._tells_all(number):
                continue
            if not whole and self.passed and groups[number].kind == "call":
                continue  # arithmetic stays closed while the model does
            together = [number] if whole else self._together(number, waiting)
            for each in together:
                page.show(each, self._items(each))
            large = groups[number].kind == "graph" or (whole and bool(self.drawing.graph.segments))
            if not (large or whole or self.passed) and shown < _FEW_SHOWN:
                others = [other for _, _, other in waiting if other not in self.opened]
                large = all(self._tells_all(other) for other in others)  # it alone can be opened
            if not page.open(together, large=large):
                if whole:
                    return False
                self.passed.update(together)
                # Of modules of one class one tells most.
                if len(together) < 2 or not page.open([number]):
                    continue
                self.passed.discard(number)
                together = [number]
            shown += sum([len(self._items(each)) - 1 for each in together])
            for opened in together:
                for alike in self._show(opened):
                    later = below + 1
                    heappush(waiting, (self._rank(alike, later), later, alike[0]))
        return fits

    def _items(self, number: int | None) -> list[int]:
        """The keys of what is directly in a group."""
        return [*self._leaves(number), *(~first for first, *_ in self._families(number))]

    def _together(self, number: int, waiting: list[_Waiting]) -> list[int]:
        """A group with those that are opened at once, if none stands out.

        These are all runs of its row, and all modules of its class at its depth.
        """
        found, moved, _ = self.worth.get(number, _NOTHING)
        part = self.groups.groups[number]
        if not self._plain_run(number):
            if found or moved or not part.module_class:
                return [number]
            level = self._class(number)
            alike = [
                n
                for _, _, n in waiting
                if self._class(n) == level and n not in self.opened and not self._tells_all(n)
                if not any(self.worth.get(n, _NOTHING)[:2])
            ]
            return [number, *alike]
        row = self.opened[self.around[number]]
        return [n for n, *_ in row if n not in self.opened and self._plain_run(n)]

    def _class(self, number: int) -> tuple[str, int]:
        """The class of a module without its arguments, and how many modules are around it."""
        groups = self.groups.groups
        around = [groups[outer].kind == "module" for outer in self.groups.around(number)]
        return groups[number].module_class.partition("(")[0], sum(around)

    def _tells_all(self, number: int) -> bool:
        """Is it drawn as one operation, or does its box say what is inside?"""
        found, moved, _ = self.worth.get(number, _NOTHING)
        if number in self.drawing.units:
            return number not in self.repeated
        part = self.groups.groups[number]
        if part.span[0] == part.span[1] and part.size > _FEW:
            return not found  # the parameters of a module whose operations are not in the graph
        if number in self.cut:
            return False
        return part.kind == "chain" and not (found or moved)

    def _plain_run(self, number: int) -> bool:
        part = self.groups.groups[number]
        modules = any(self.groups.groups[child].kind == "module" for child in part.children)
        found, moved, _ = self.worth.get(number, _NOTHING)
        return part.kind == "run" and modules and not (found or moved)

    def tree(self, start: int | None) -> Open:
        """What was opened, as a tree."""
        made: dict[int | None, Open] = {}
        # Groups come before those inside: inner ones are made first.
        for number in sorted(self.opened, key=lambda n: -1 if n is None else n, reverse=True):
            parts: list[Open | Box | Leaf] = [Leaf(i) for i in self._leaves(number)]
            for alike in self.opened[number]:
                first, repeats = alike[0], alike[1:]
                if first in made:
                    parts.append(replace(made[first], repeats=repeats))
                else:
                    parts.append(Box(first, repeats))
            made[number] = Open(number, tuple(parts))
        return made[None] if start is None else Open(None, (made[start],))

    def _rank(self, alike: tuple[int, ...], below: int) -> tuple[float, ...]:
        """Smaller is opened sooner."""
        worth = [self.worth.get(number, _NOTHING) for number in alike] if self.worth else [_NOTHING]
        found, moved, saved = (sum(column) for column in zip(*worth, strict=True))
        kind = self.groups.groups[alike[0]].kind
        if kind == "run":  # it tells nothing while it is closed
            below -= 1
        elif kind == "call":  # arithmetic comes after modules
            below += 2
        return -min(found, 1), -min(moved, 1), below, -saved, alike[0]

    def _show(self, number: int | None) -> list[tuple[int, ...]]:
        self.opened[number] = found = self._families(number)
        self.repeated.update([alike[0] for alike in found if len(alike) > 1])
        self.around.update(dict.fromkeys([alike[0] for alike in found], number))
        return found

    def _leaves(self, number: int | None) -> list[int]:
        nodes = self.groups.nodes if number is None else self.groups.groups[number].nodes
        return [i for i in nodes if i not in self.drawing.inner.folded]

    def _families(self, number: int | None) -> list[tuple[int, ...]]:
        if self.drawing.fold:
            found = self.drawing.families.get(number, [])
        else:
            groups = self.groups
            children = groups.roots if number is None else groups.groups[number].children
            found = [(child,) for child in children]
        return [alike for alike in found if self.visible[alike[0]]]


def weigh(drawing: Drawing) -> Drawing:
    """The drawing with what makes a reader look into each group, where there is anything."""
    tree = drawing.groups
    if tree is None:
        return drawing
    wrong = [finding for finding in drawing.findings if finding.severity != "info"]
    named = Counter(node for finding in wrong for node in finding.nodes)
    nodes, transfers = drawing.graph.nodes, drawing.graph.transfers
    moved = Counter([transfer.node for transfer in transfers if transfer.node is not None])
    moved.update({node: len(sent) for node, sent in by_node(drawing.graph.collectives).items()})
    groups, of = tree.groups, tree.of
    # By group, for what is directly in it, then for all of it.
    found, copies, kept = ([0] * len(groups) for _ in range(3))
    for column, counted in ((found, named), (copies, moved)):
        for i, times in counted.items():
            if (number := of[i]) is not None:
                column[number] += times
    for node, number in zip(nodes, of, strict=True):
        if node.saved and number is not None:
            for saved in node.saved:
                kept[number] += saved.nbytes
    for part in reversed(groups):  # inner ones first
        if (outer := part.parent) is not None:
            for column in (found, copies, kept):
                column[outer] += column[part.id]
    every = enumerate(zip(found, copies, kept, strict=True))
    worth = {number: worth for number, worth in every if worth != _NOTHING}
    return drawing.having(worth=worth)
