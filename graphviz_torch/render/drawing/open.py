"""Drawing step: open groups, the most interesting first, while the page has space."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from heapq import heapify, heappop, heappush

from ...graph.collective import by_node
from ..data_boxes import stubs_of
from ..groups.keys import Keys
from .connect import connect
from .drawing import Drawing
from .page import PageEstimate, frame
from .picture_size import page_share
from .values import Box, Interest, Leaf, Open

_NOTHING = Interest()
_MIN_BOXES = 8  # a drawing with fewer boxes may exceed the page a little, to show more boxes
# Edges and data can make a drawing too large. This is the maximum number of attempts to close
# groups until the drawing fits.
_MAX_TRIES = 8
# A module without operations in the graph stays closed if it has more parameters than this.
_MAX_LONE_PARAMETERS = 2
_Waiting = tuple[tuple[float, ...], int, int]  # (priority, smallest first; depth; group)


def open_groups(drawing: Drawing) -> Drawing:
    """Choose the groups to open, add edges and data, and return the new drawing.

    With the option `depth`, the groups of the first `depth` levels are opened. Otherwise groups are
    opened while the page has space: first those with findings, copies or collectives, then those
    that learn in a model of which most is frozen, then outer groups before inner groups. If the
    drawing with its edges and data is larger than a page, some groups are closed again.
    """
    if drawing.groups is None:
        folded = drawing.inner.folded
        leaves = [Leaf(node.id) for node in drawing.graph.nodes if node.id not in folded]
        opened = frame(connect(drawing.having(tree=Open(None, tuple(leaves)))))
        return opened.having(stubs=stubs_of(opened))
    opening = _Opening(drawing)
    best = opened = _open(drawing, opening)
    order = opening.order
    for _ in range(_MAX_TRIES):
        if best.fits or drawing.whole or not order:
            break
        # Close the groups that were opened last, which are the least interesting, but of several
        # modules of a class keep one as an example.
        count = max(1, len(order) // _MAX_TRIES)
        examples = [[opening.example(each)] for each in order[-count:] if len(each) > 1]
        order = [*order[:-count], *examples]
        kept = {number for together in order for number in together}
        opened = _open(drawing, _Opening(drawing, opening.opened.keys() - kept))
        boxes = len(opened.nodes) + len(opened.boxes)
        if opened.fill < best.fill and (boxes >= _MIN_BOXES or opened.fits):
            best = opened
    return best


def _open(drawing: Drawing, opening: _Opening) -> Drawing:
    """Open groups, add edges, and estimate `Drawing.fill`, the share of a page that is filled."""
    fits = opening.open(drawing.start)
    tree = opening.tree(drawing.start)
    hidden = tree.represented_groups
    keys = Keys(opening.groups, tree.nodes, tree.boxes, hidden, drawing.inner.host)
    stacked = opening.page is not None and opening.page.segments_stacked
    opened = frame(connect(drawing.having(tree=tree, keys=keys, segments_stacked=stacked)))
    opened = opened.having(stubs=stubs_of(opened))
    if not fits:
        return opened.having(fill=math.inf)
    # The boxes of data that several backward passes share are between the passes, not beside them.
    if opening.page is None or drawing.graph.segments:
        return opened
    return opened.having(fill=page_share(opened))


class _Opening:
    """The state of the choice of groups to open.

    Args:
        drawing: the drawing.
        closed: groups that are not opened, unless they have a single child.
    """

    def __init__(self, drawing: Drawing, closed: Set[int | None] = frozenset()) -> None:
        assert drawing.groups is not None
        self.drawing = drawing
        self.groups = drawing.groups
        # open group -> families of its child groups
        self.opened: dict[int | None, list[tuple[int, ...]]] = {}
        # first group of a family -> the open group that contains it
        self.around: dict[int, int | None] = {}
        self.interest = drawing.interest
        # True if most parameters of the model are frozen
        self.is_frozen = any(each.learning for each in self.interest.values())
        ends = [end for cut in drawing.graph.cuts for end in (cut.before, *cut.after)]
        inner = {self.groups.of[end] for end in ends if end is not None}
        self.cut = {outer for number in inner for outer in self.groups.with_ancestors(number)}
        rows = drawing.graph.untracked
        self.called = {row.label for row in rows if row.kind == "module"}
        self.repeated: set[int] = set()  # groups that are drawn for several identical groups
        # lists of groups that were opened together, in the order of opening
        self.order: list[list[int]] = []
        self.closed = closed
        self.passed: set[int] = set()  # groups that stay closed because they did not fit
        # number of nodes in each group, without nodes that another node's box shows
        self.visible = self._count()
        paged = drawing.limit is None and drawing.options["depth"] is None
        self.page = PageEstimate(drawing) if paged else None

    def _count(self) -> list[int]:
        counts = [0] * len(self.groups.groups)
        folded = self.drawing.inner.folded
        for node, number in enumerate(self.groups.of):
            if number is not None and node not in folded:
                counts[number] += 1
        for part in reversed(self.groups.groups):  # inner groups first
            if part.parent is not None:
                counts[part.parent] += counts[part.id]
        return counts

    def open(self, start: int | None) -> bool:
        """Open groups inside `start`; return False if the required groups do not fit the page."""
        depth, limit = self.drawing.options["depth"], self.drawing.limit
        if self.page is not None:
            return self._fill(start, self.page)
        # The outermost groups of a joined graph are backward passes, which `depth` does not count.
        outer = -1 if start is None and self.drawing.graph.segments else 0
        waiting = [
            (self._priority(alike, outer), outer, alike[0]) for alike in self._open_group(start)
        ]
        heapify(waiting)
        shown = len(waiting) + len(self._leaves(start))
        while waiting:
            _, below, number = heappop(waiting)
            if number in self.opened or number in self.passed:
                continue
            together = [number] if depth is not None else self._opened_with(number, waiting)
            more = sum(len(self._leaves(n)) + len(self._families(n)) - 1 for n in together)
            if depth is not None:
                if below >= depth:
                    continue
            elif (limit is not None and shown + more > limit) or self._stays_closed(number):
                self.passed.update(together)
                continue
            shown += more
            for opened in together:
                for alike in self._open_group(opened):
                    heappush(waiting, (self._priority(alike, below + 1), below + 1, alike[0]))
        return True

    def _fill(self, start: int | None, page: PageEstimate) -> bool:
        """Open groups while the page has space, or all groups if `drawing.whole`.

        Return False if the drawing does not fit.
        """
        whole = self.drawing.whole
        waiting = [(self._priority(alike, 0), 0, alike[0]) for alike in self._open_group(start)]
        heapify(waiting)
        page.show(start, self._items(start))
        shown = len(self._items(start))
        fits = page.open([start], large=not whole)
        groups = self.groups.groups
        while waiting and fits:
            _, below, number = heappop(waiting)
            if number in self.opened or number in self.passed or self._stays_closed(number):
                continue
            single = len(self._items(number)) < 2  # such a group takes the same space when open
            if number in self.closed and not single:
                continue
            if not whole and self.passed and groups[number].kind == "call":
                continue  # function calls stay closed after a module did not fit
            together = [number] if whole or single else self._opened_with(number, waiting)
            for each in together:
                page.show(each, self._items(each))
            large = groups[number].kind == "graph" or (whole and bool(self.drawing.graph.segments))
            if not (large or whole or self.passed) and shown < _MIN_BOXES:
                others = [other for _, _, other in waiting if other not in self.opened]
                # If no other group can be opened, this one may exceed the page.
                large = all(self._stays_closed(other) for other in others)
            if not page.open(together, large=large):
                if whole:
                    return False
                self.passed.update(together)
                # If not all modules of a class fit, open one of them as an example.
                example = self.example(together)
                if len(together) < 2 or not page.open([example]):
                    continue
                self.passed.discard(example)
                together = [example]
            if not single:
                self.order.append(together)
            shown += sum([len(self._items(each)) - 1 for each in together])
            for opened in together:
                for alike in self._open_group(opened):
                    later = below + 1
                    heappush(waiting, (self._priority(alike, later), later, alike[0]))
        return fits

    def example(self, together: Sequence[int]) -> int:
        """Return the first module, or the first that is drawn for several identical modules."""
        return min(together, key=lambda number: (number not in self.repeated, number))

    def _items(self, number: int | None) -> list[int]:
        """Return the keys of a group's children to draw: nodes, and one group per family."""
        return [*self._leaves(number), *(~first for first, *_ in self._families(number))]

    def _opened_with(self, number: int, waiting: list[_Waiting]) -> list[int]:
        """Return all groups that have to be opened together with a group, itself included.

        A run (consecutive nodes) is opened with all runs of the same parent, and a module with all
        modules of the same class and depth. A group with findings, transfers or collectives is
        opened alone.
        """
        part = self.groups.groups[number]
        if not self._plain_run(number):
            if any(self.interest.get(number, _NOTHING)[:3]) or not part.module_class:
                return [number]
            level = self._class_and_depth(number)
            alike = [
                n
                for _, _, n in waiting
                if self._class_and_depth(n) == level
                and n not in self.opened
                and not self._stays_closed(n)
                if not any(self.interest.get(n, _NOTHING)[:3])
            ]
            return [number, *alike]
        row = self.opened[self.around[number]]
        return [n for n, *_ in row if n not in self.opened and self._plain_run(n)]

    def _class_and_depth(self, number: int) -> tuple[str, int]:
        """Return the name of a module's class, and the module's depth."""
        groups = self.groups.groups
        around = [groups[outer].kind == "module" for outer in self.groups.with_ancestors(number)]
        return groups[number].module_class.partition("(")[0], sum(around)

    def _stays_closed(self, number: int) -> bool:
        """Return True if opening the group would show nothing new, or only frozen modules.

        Such a group is fused into one operation, contains only parameters, is a module that calls
        one function, or is a chain of operations that the group's name lists.
        """
        interest = self.interest.get(number, _NOTHING)
        if number in self.drawing.fused:
            return number not in self.repeated
        part = self.groups.groups[number]
        if part.has_only_leaves:
            if part.path in self.called:
                return True  # the box also shows the module's call, which created no node
            if part.size > _MAX_LONE_PARAMETERS:
                return not interest.findings
        if self.is_frozen and part.kind == "module" and not any(interest[:3]):
            return len(self._items(number)) > 1
        if number in self.cut:
            return False
        if (
            self.page
            and part.kind == "module"
            and not interest.is_marked
            and self._is_one_call(number)
        ):
            return True  # the module's name says more than that of the function
        return part.kind == "chain" and not interest.is_marked

    def _is_one_call(self, number: int) -> bool:
        """Return True if a group would show one box, of a function call."""
        shown = self._items(number)
        return len(shown) == 1 and shown[0] < 0 and self.groups.groups[~shown[0]].kind == "call"

    def _plain_run(self, number: int) -> bool:
        part = self.groups.groups[number]
        modules = any(self.groups.groups[child].kind == "module" for child in part.children)
        marked = self.interest.get(number, _NOTHING).is_marked
        return part.kind == "run" and modules and not marked

    def tree(self, start: int | None) -> Open:
        """Return the opened groups as a tree."""
        made: dict[int | None, Open] = {}
        # Parents have lower ids than their children, so the reversed order builds inner groups
        # first.
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

    def _priority(self, alike: tuple[int, ...], below: int) -> tuple[float, ...]:
        """Return the priority of a family of identical groups. Small values are opened first.

        Args:
            alike: ids of the groups.
            below: depth of the groups.
        """
        interest = (
            [self.interest.get(number, _NOTHING) for number in alike]
            if self.interest
            else [_NOTHING]
        )
        found, moved, learning, saved = (sum(column) for column in zip(*interest, strict=True))
        kind = self.groups.groups[alike[0]].kind
        if kind == "run":  # open runs (consecutive nodes) early: a closed run says little
            below -= 1
        elif kind == "call":  # function calls are opened later than modules
            below += 2
        if learning:  # open the innermost modules that learn before the next block
            return -min(found, 1), -min(moved, 1), -1, -below, 0, alike[0]
        return -min(found, 1), -min(moved, 1), 0, below, -saved, alike[0]

    def _open_group(self, number: int | None) -> list[tuple[int, ...]]:
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
    """Compute `Drawing.interest`, and return the new drawing."""
    tree = drawing.groups
    if tree is None:
        return drawing
    wrong = [finding for finding in drawing.findings if finding.severity != "info"]
    named = Counter(node for finding in wrong for node in finding.nodes)
    nodes, transfers = drawing.graph.nodes, drawing.graph.transfers
    moved = Counter([transfer.node for transfer in transfers if transfer.node is not None])
    moved.update({node: len(sent) for node, sent in by_node(drawing.graph.collectives).items()})
    groups, of = tree.groups, tree.of
    # First sum over the nodes directly in each group, then add the sums of the groups inside.
    found, copies, learning, kept = ([0] * len(groups) for _ in range(4))
    for column, counted in (
        (found, named),
        (copies, moved),
        (learning, _learning_parameters(drawing)),
    ):
        for i, times in counted.items():
            if (number := of[i]) is not None:
                column[number] += times
    for node, number in zip(nodes, of, strict=True):
        if node.saved and number is not None:
            for saved in node.saved:
                kept[number] += saved.nbytes
    for part in reversed(groups):  # inner groups first
        if (outer := part.parent) is not None:
            for column in (found, copies, learning, kept):
                column[outer] += column[part.id]
    every = enumerate(zip(found, copies, learning, kept, strict=True))
    interest = {number: Interest(*sums) for number, sums in every if sums != _NOTHING}
    return drawing.having(interest=interest)


def _learning_parameters(drawing: Drawing) -> dict[int, int]:
    """Return the parameters that learn -> 1, if most parameters of the model are frozen."""
    known = drawing.graph.parameters
    if 2 * sum(not each.requires_grad for each in known) <= len(known):
        return {}
    return {node.id: 1 for node in drawing.graph.nodes if node.leaf == "parameter"}
