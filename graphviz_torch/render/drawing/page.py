"""Estimate the size of a drawing while its groups are opened one after another.

A layout by Graphviz would be exact, but takes a hundred times as long. The estimate lays out each
open group separately. It assigns the children to ranks in the direction of the data, and adds up
the widths of the children in a rank. The frame around an open group is removed where the frame adds
nothing or misleads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from .drawing import Drawing
from .picture_size import Sizes
from .values import Leaf, Open

# Page size in points. A README's column is 622 points wide. Scaled down to this width, a page has
# text of 11 px and takes one and a half screens.
WIDTH: Final = 680.0
HEIGHT: Final = 1230.0
# Factor by which a drawing may exceed the page if certain groups must be open. Scaled down to the
# width of a README's column, such a drawing has text of 9 px.
_LARGE_PAGE: Final = 1.25
_RANK_GAP, _BOX_GAP = 20.0, 16.0  # points between ranks, and between boxes of one rank
_FRAME_WIDTH, _FRAME_HEIGHT = 18.0, 36.0  # points that a frame with a title adds to a group
_EDGE_WIDTH = 11.0  # points that an edge to a later rank needs between boxes
_LEGEND_HEIGHT = 50.0  # points

_Size = tuple[float, float]


class PageEstimate:
    """The estimated size of a drawing, updated as its groups are opened.

    Args:
        drawing: a drawing with groups, families and fused nodes.
    """

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._items: dict[int | None, Sequence[int]] = {}
        self._open: dict[int | None, _Size] = {}
        self._sizes = Sizes(drawing)
        self._edges, self._entered = _edges_by_group(drawing)
        self._stacks = False

    def show(self, number: int | None, items: Sequence[int]) -> None:
        """Set the keys of the children that a group will show. Call this before `open`."""
        self._items[number] = items

    def open(self, numbers: Iterable[int | None], *, large: bool = False) -> bool:
        """Open groups if the drawing then still fits the page.

        Args:
            numbers: ids of the groups, whose children were passed to `show`.
            large: True to allow a page that is 1.25 times as large.

        Returns:
            True if the groups were opened.
        """
        before = dict(self._open)
        for number in numbers:
            self._open[number] = self._measure(number)
            self._grow(number)
        start = self._drawing.start
        if start in self._open and self._fits(before.get(start), _LARGE_PAGE if large else 1.0):
            return True
        self._open = before
        return False

    @property
    def segments_stacked(self) -> bool:
        """True if the backward passes of a joined graph are drawn one below the other."""
        return self._stacks

    def _fits(self, before: _Size | None, times: float) -> bool:
        """Return True if the drawing fits a page, or is not larger than before.

        Args:
            before: size of the drawing before the last groups were opened; None if there was none.
            times: factor by which the page is larger than usual.
        """
        width, height = self._open.get(self._drawing.start, (0.0, 0.0))
        wide, high = before or (0.0, 0.0)
        return width <= max(times * WIDTH, wide) and height <= max(
            times * HEIGHT - _LEGEND_HEIGHT, high
        )

    def _grow(self, number: int | None) -> None:
        """Update the sizes of the open groups that contain a group, inner groups first."""
        groups = self._drawing.groups
        assert groups is not None
        while number is not None and number != self._drawing.start:
            number = groups.groups[number].parent
            if number in self._items:
                self._open[number] = self._measure(number)

    def _measure(self, number: int | None) -> _Size:
        items = self._items[number]
        sizes = {key: self._size(key) for key in items}
        place = {key: at for at, key in enumerate(sorted(items, key=self._drawing.place))}
        ends = [(a, b) for a, b in self._edges.get(number, ()) if a in place and b in place]
        ends = [(a, b) for a, b in ends if place[a] < place[b] and not self._side_by_side(a, b)]
        size = _layout_size([*place], sizes, ends)
        if number is None and self._drawing.graph.segments:
            self._stacks = size[0] > WIDTH
            if self._stacks:
                size = _layout_size([*place], sizes, [*pairwise(place)])
        return size

    def _side_by_side(self, source: int, target: int) -> bool:
        """Return True if two connected open groups can be drawn side by side.

        They can if each child of the target that reads from the source also reads from another
        child of the target. Then the first rank of the target reads nothing from the source.
        """
        if source >= 0 or target >= 0 or not {~source, ~target} <= self._open.keys():
            return False
        fed = {inner for _, inner in self._edges.get(~target, ())}
        return self._entered.get((source, target), set()) <= fed

    def _size(self, key: int) -> _Size:
        if key < 0 and ~key in self._open:
            width, height = self._open[~key]
            alone = len(self._items[~key]) < 2
            if (
                alone or is_plain_sequential(self._drawing, ~key)
            ) and ~key not in self._drawing.tree.represented_groups:
                return width, height  # such a group has no frame
            return max(width, self._sizes.title(~key)) + _FRAME_WIDTH, height + _FRAME_HEIGHT
        return self._sizes.box(key)


def _layout_size(
    order: Sequence[int], sizes: dict[int, _Size], ends: Sequence[tuple[int, int]]
) -> _Size:
    """Return the width and height of boxes that are arranged in ranks.

    Args:
        order: all keys in topological order.
        sizes: width and height of each box.
        ends: the (source, target) keys of each edge.
    """
    users: dict[int, list[int]] = defaultdict(list)
    fed = set[int]()
    for a, b in ends:
        users[a].append(b)
        fed.add(b)
    top = dict.fromkeys(order, 0.0)
    for key in order:
        below = top[key] + sizes[key][1] + _RANK_GAP
        for user in users[key]:
            top[user] = max(top[user], below)
    for key in reversed(order):  # move boxes without inputs down, close to their first users
        if key not in fed and users[key]:
            top[key] = min(top[user] for user in users[key]) - sizes[key][1] - _RANK_GAP
    spans = [(top[key], top[key] + sizes[key][1], sizes[key][0] + _BOX_GAP) for key in order]
    for a, b in ends:
        start, end = top[a] + sizes[a][1], top[b]
        if end - start > 2 * _RANK_GAP:
            spans.append((start + _RANK_GAP, end - _RANK_GAP, _EDGE_WIDTH))
    width = max(
        (sum(w for begin, end, w in spans if begin <= here < end) for here, _, _ in spans),
        default=0.0,
    )
    height = max((end for _, end, _ in spans), default=0.0) - min((t for t, *_ in spans), default=0)
    return width, height


_Ends = tuple[int, int]  # (source key, target key)


def _edges_by_group(drawing: Drawing) -> tuple[dict[int | None, set[_Ends]], dict[_Ends, set[int]]]:
    """Return the edges between the direct children of each group, as pairs of keys.

    Returns:
        Two dicts. The first maps a group to the edges between its direct children. All edges
        between nodes inside two children count as one edge between the children. The second maps an
        edge between two groups to the direct children of the second group at which the edge ends.
    """
    groups = drawing.groups
    assert groups is not None
    drawn_for: dict[int, int] = {}  # hidden group -> the identical group that is drawn instead
    drawn_in: dict[int, int | None] = {}  # group -> the group that contains it in the drawing
    for level, rows in drawing.families.items() if drawing.fold else ():
        for first, *rest in rows:
            drawn_for.update(dict.fromkeys(rest, first))
            drawn_in.update(dict.fromkeys((first, *rest), level))
    around: list[tuple[int, ...]] = []  # for each group, the groups that contain it, itself last
    for part in groups.groups:
        # A run that was replaced by the groups inside it does not appear in the drawing.
        if drawing.fold and part.id not in drawn_in:
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


def frame(drawing: Drawing) -> Drawing:
    """Remove uninformative frames around open groups, and return the new drawing."""
    if drawing.groups is None:
        return drawing
    # A run or chain (a group of consecutive nodes) keeps its frame only if it is drawn in place of
    # several identical groups.
    kinds, repeated = drawing.groups.groups, drawing.tree.represented_groups
    runs = {n for n in drawing.tree.framed_groups if kinds[n].kind in ("run", "chain")}
    runs.difference_update(repeated)
    runs |= {n for n in drawing.tree.framed_groups if is_plain_sequential(drawing, n)} - {*repeated}
    drawing = _remove_frames(drawing, runs)
    drawing = _remove_frames(drawing, _interrupted_containers(drawing))
    return _remove_frames(drawing, *_single_child_modules(drawing))


def is_plain_sequential(drawing: Drawing, number: int) -> bool:
    """Return True if a group is an nn.Sequential, whose name its modules have in their titles.

    A Sequential that is a whole network or that is called several times is left out, and so is
    every Sequential of a drawing with all details.
    """
    assert drawing.groups is not None
    groups = drawing.groups.groups
    part = groups[number]
    if part.module_class != "Sequential" or drawing.options["detail"] == "full":
        return False
    if number == drawing.start or number in drawing.call_titles:
        return False
    if "." not in part.path and all(row.path for row in drawing.graph.modules):
        return False
    beside = drawing.groups.roots if part.parent is None else groups[part.parent].children
    return "#" not in part.name and all(groups[n].name != f"{part.name}#2" for n in beside)


def _remove_frames(
    drawing: Drawing, groups: Collection[int], alone: dict[int, str] | None = None
) -> Drawing:
    """Return the drawing without the frames of `groups`.

    Args:
        drawing: the drawing.
        groups: ids of the groups.
        alone: node -> title of its module, for nodes that get the title that the frame had.
    """
    if not groups:
        return drawing
    titles = alone or {}

    def change(part: Open) -> Open:
        part = replace(part, framed=part.framed and part.group not in groups)
        if not any(type(c) is Leaf and c.node in titles for c in part.children):
            return part
        named = [
            Leaf(c.node, titles.get(c.node, c.module)) if type(c) is Leaf else c
            for c in part.children
        ]
        return replace(part, children=tuple(named))

    return drawing.having(tree=drawing.tree.transform(change))


def _interrupted_containers(drawing: Drawing) -> set[int]:
    """Return open containers whose result passes through other modules and comes back.

    An example is an nn.ModuleList of layers with other operations between them. The frame of such a
    container would be a tall, empty column beside these operations.
    """
    assert drawing.groups is not None
    groups, tree = drawing.groups.groups, drawing.tree
    containers = [
        n for n in tree.framed_groups if groups[n].kind == "module" and not groups[n].nodes
    ]
    if not containers:
        return set()
    users: dict[int, list[int]] = defaultdict(list)
    for source, target in drawing.ends:
        users[source].append(target)
    around = {key: set(path) for key, path in tree.paths.items()}
    found: set[int] = set()
    for number in containers:
        members = [key for key, path in around.items() if number in path]
        behind = [user for key in members for user in users[key] if number not in around[user]]
        seen = set(behind)
        for key in behind:
            fresh = [user for user in users[key] if user not in seen]
            if any(number in around[user] for user in fresh):
                found.add(number)
                break
            seen.update(fresh)
            behind += fresh
    return found


def _single_child_modules(drawing: Drawing) -> tuple[set[int], dict[int, str]]:
    """Return the open modules with one child, and the titles of modules whose child is a node.

    A module is left out of the result if it is drawn in place of several identical modules and only
    its frame shows their number.

    Returns:
        The ids of the modules, and node -> title of its module.
    """
    assert drawing.groups is not None
    groups, tree = drawing.groups.groups, drawing.tree
    inside: dict[int, list[int]] = defaultdict(list)  # group with a frame -> keys inside the frame
    for key, path in tree.paths.items():
        for number in path:
            inside[number].append(key)
    found: set[int] = set()
    alone: dict[int, str] = {}
    for number in sorted(tree.framed_groups, reverse=True):  # inner groups first
        members = inside[number]
        paths = [[n for n in tree.paths[key] if n not in found] for key in members]
        frames = {tuple(path[path.index(number) + 1 :][:1]) for path in paths}
        single = len(members) == 1 or (len(frames) == 1 and () not in frames)
        repeated = number in tree.represented_groups
        if not single or groups[number].kind != "module" or (repeated and len(members) > 1):
            continue
        if len(members) == 1 and members[0] >= 0 and members[0] not in alone:
            alone[members[0]] = drawing.title(number)
        elif repeated:
            continue
        found.add(number)
    return found, alone
