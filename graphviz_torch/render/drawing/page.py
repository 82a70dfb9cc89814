"""An estimate of how large a drawing is, while groups of it are opened one after another.

Only Graphviz knows the true size, and takes a hundred times as long. Each open group is laid out by
itself: what is in it has ranks in the direction of the data, and what is beside each other in these
has a width together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from .drawing import Drawing
from .sizes import Sizes

WIDTH: Final = 680.0  # points; a README shows 622 of them without scaling the picture
HEIGHT: Final = 1230.0  # the same of a screen and a half: with these, text is 11 px high there
_LARGER: Final = 1.25  # times as large may be what must be seen: its text is 9 px high
_RANK, _BESIDE = 20.0, 16.0  # between boxes below and beside each other
_FRAME_WIDTH, _FRAME_HEIGHT = 18.0, 36.0  # that a frame adds, with its title
_PASSING = 11.0  # the width of an edge that runs beside a box
_BELOW = 50.0  # the height of the legend

_Size = tuple[float, float]


class Page:
    """The size of a drawing in which some groups are open.

    Args:
        drawing: with its groups, families and units.
    """

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._items: dict[int | None, Sequence[int]] = {}
        self._open: dict[int | None, _Size] = {}
        self._sizes = Sizes(drawing)
        self._edges, self._entered = _lifted(drawing)
        self._stacks = False

    def show(self, number: int | None, items: Sequence[int]) -> None:
        """Note what an open group contains."""
        self._items[number] = items

    def open(self, numbers: Iterable[int | None], *, large: bool = False) -> bool:
        """Open groups, whose contents are known by `show`, unless the page has no room for them.

        Args:
            large: whether a larger page will do.

        Returns:
            Whether they are open now.
        """
        before = dict(self._open)
        for number in numbers:
            self._open[number] = self._measured(number)
            self._grow(number)
        start = self._drawing.start
        if start in self._open and self._fits(before.get(start), _LARGER if large else 1.0):
            return True
        self._open = before
        return False

    @property
    def stacks(self) -> bool:
        """Are the graphs that a graph was joined from drawn below each other?"""
        return self._stacks

    def _fits(self, before: _Size | None, times: float) -> bool:
        """Has the page room, or is the drawing no larger than before where it has none?"""
        width, height = self._open.get(self._drawing.start, (0.0, 0.0))
        wide, high = before or (0.0, 0.0)
        return width <= max(times * WIDTH, wide) and height <= max(times * HEIGHT - _BELOW, high)

    def _grow(self, number: int | None) -> None:
        """Measure the open groups around one again, inner ones first."""
        groups = self._drawing.groups
        assert groups is not None
        while number is not None and number != self._drawing.start:
            number = groups.groups[number].parent
            if number in self._items:
                self._open[number] = self._measured(number)

    def _measured(self, number: int | None) -> _Size:
        items = self._items[number]
        sizes = {key: self._size(key) for key in items}
        place = {key: at for at, key in enumerate(sorted(items, key=self._drawing.place))}
        ends = [(a, b) for a, b in self._edges.get(number, ()) if a in place and b in place]
        ends = [(a, b) for a, b in ends if place[a] < place[b] and not self._beside(a, b)]
        size = _laid_out([*place], sizes, ends)
        if number is None and self._drawing.graph.segments:
            self._stacks = size[0] > WIDTH
            if self._stacks:
                size = _laid_out([*place], sizes, [*pairwise(place)])
        return size

    def _beside(self, source: int, target: int) -> bool:
        """Do two open groups stand beside each other, because one enters the other's middle?"""
        if source >= 0 or target >= 0 or not {~source, ~target} <= self._open.keys():
            return False
        fed = {inner for _, inner in self._edges.get(~target, ())}
        return self._entered.get((source, target), set()) <= fed

    def _size(self, key: int) -> _Size:
        if key < 0 and ~key in self._open:
            width, height = self._open[~key]
            if len(self._items[~key]) < 2 and ~key not in self._drawing.tree.repeated:
                return width, height  # a frame around one thing is not drawn
            return max(width, self._sizes.title(~key)) + _FRAME_WIDTH, height + _FRAME_HEIGHT
        return self._sizes.of(key)


def _laid_out(
    order: Sequence[int], sizes: dict[int, _Size], ends: Sequence[tuple[int, int]]
) -> _Size:
    """The size of boxes in ranks.

    Args:
        order: all keys, sources before what they lead to.
        ends: both keys of each edge.
    """
    users: dict[int, list[int]] = defaultdict(list)
    fed = set[int]()
    for a, b in ends:
        users[a].append(b)
        fed.add(b)
    top = dict.fromkeys(order, 0.0)
    for key in order:
        below = top[key] + sizes[key][1] + _RANK
        for user in users[key]:
            top[user] = max(top[user], below)
    for key in reversed(order):  # what reads nothing is right above its first user
        if key not in fed and users[key]:
            top[key] = min(top[user] for user in users[key]) - sizes[key][1] - _RANK
    spans = [(top[key], top[key] + sizes[key][1], sizes[key][0] + _BESIDE) for key in order]
    for a, b in ends:
        start, end = top[a] + sizes[a][1], top[b]
        if end - start > 2 * _RANK:
            spans.append((start + _RANK, end - _RANK, _PASSING))
    width = max(
        (sum(w for begin, end, w in spans if begin <= here < end) for here, _, _ in spans),
        default=0.0,
    )
    height = max((end for _, end, _ in spans), default=0.0) - min((t for t, *_ in spans), default=0)
    return width, height


_Ends = tuple[int, int]  # keys


def _lifted(drawing: Drawing) -> tuple[dict[int | None, set[_Ends]], dict[_Ends, set[int]]]:
    """Return, by group, the edges between what is directly in it: those of what is inside, as one.

    The second value has, for the edges into groups, what they enter there.
    """
    groups = drawing.groups
    assert groups is not None
    drawn_for: dict[int, int] = {}  # group of a family -> the first of it
    drawn_in: dict[int, int | None] = {}  # group -> that in which it is drawn
    for level, rows in drawing.families.items() if drawing.fold else ():
        for first, *rest in rows:
            drawn_for.update(dict.fromkeys(rest, first))
            drawn_in.update(dict.fromkeys((first, *rest), level))
    around: list[tuple[int, ...]] = []  # of each group, itself last
    for part in groups.groups:
        if drawing.fold and part.id not in drawn_in:  # a run whose parts are drawn without it
            around.append(() if part.parent is None else around[part.parent])
            continue
        home = drawn_in.get(part.id, part.parent)
        around.append((*(() if home is None else around[home]), part.id))
    found: dict[int | None, set[_Ends]] = defaultdict(set)
    entered: dict[_Ends, set[int]] = defaultdict(set)
    of = groups.of
    for edge in drawing.inner.edges:
        one, other = of[edge.source], of[edge.target]
        level = None
        if one == other:
            found[one].add((edge.source, edge.target))
            continue
        starts = around[one] if one is not None else ()
        ends = around[other] if other is not None else ()
        depth = 0
        while depth < len(starts) and depth < len(ends) and starts[depth] == ends[depth]:
            level = starts[depth]
            depth += 1
        a = edge.source if depth == len(starts) else ~_first(starts[depth], drawn_for)
        b = edge.target if depth == len(ends) else ~_first(ends[depth], drawn_for)
        if a == b:
            continue
        found[level].add((a, b))
        if a < 0 and b < 0:
            below = ends[depth + 1 : depth + 2]
            entered[a, b].add(~_first(below[0], drawn_for) if below else edge.target)
    return found, entered


def _first(number: int, drawn_for: dict[int, int]) -> int:
    return drawn_for.get(number, number)
