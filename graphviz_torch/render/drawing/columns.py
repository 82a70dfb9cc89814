"""The step that puts a tall drawing in columns: the flow goes on at the top of the next one.

The size of a drawing is estimated, for only Graphviz knows it: a rank is as high as its highest
node and as wide as its nodes and the edges that pass between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise
from math import inf
from operator import invert
from typing import Final, NamedTuple

from ..sizes import sizes
from .drawing import Columns, Drawing
from .level import paged
from .tree import Path

# A page in points. What is drawn stays within 2,400 and 1 : 4; an estimate can be a sixth too low.
MOST_HIGH: Final = 2050.0
MOST_WIDE: Final = 2100.0
_SLIM = 3.3  # times as high as wide, at most
_LEGEND = 350.0  # the width of the legend: nothing is narrower
_COLUMNS = 5
_FEW = 8  # things that fit a page however they stand
_RANKS = 26.0  # between two ranks
_FRAME_TOP, _FRAME_BOTTOM, _FRAME_SIDE = 24.0, 9.0, 9.0
_BESIDE, _EDGE = 16.0, 14.0  # the widths of what parts two nodes, and of an edge that passes
_BELOW = 60.0  # the legend
_LABEL, _LABEL_WIDE = 14.0, 70.0  # of an edge at a closed group
_SPLIT, _CROSSING = 250.0, 60.0  # what a divided frame, an edge to another column cost, in points


class _Source(NamedTuple):
    """An edge, as seen from its target."""

    place: int  # of the source
    opened: int  # frames around the target that it enters
    closed: int  # frames around the source that it leaves
    labelled: bool


class _Flow(NamedTuple):
    """What is put in columns: by place, which is the position in topological order."""

    keys: list[int]
    paths: list[Path]
    widths: list[float]
    heights: list[float]
    sources: list[list[_Source]]
    cutting: list[float]  # what it costs to begin a column there


def arrange(drawing: Drawing) -> Drawing:
    """The drawing in as few columns as make it fit a page; in those that come nearest, where none.

    One whose data flows sideways has one column, and so has one of a few things.
    """
    keys = [*drawing.nodes, *map(invert, drawing.boxes)]
    if not paged(drawing) or len(keys) <= _FEW:
        return drawing.having(columns=Columns((tuple(keys),), (None,)))
    flow = _flow(drawing)
    one = _measure(flow, [0, len(flow.keys)])
    found = [one]
    fewest = max(2, min(int(one.height / MOST_HIGH), _COLUMNS - 1))
    for count in range(fewest, _COLUMNS + 1):
        if found[-1].fits:
            return drawing.having(columns=found[-1])
        found.append(_measure(flow, _divide(flow, one.height / count)))
    best = min(found, key=lambda c: (not c.fits, max(c.height / MOST_HIGH, c.width / MOST_WIDE)))
    return drawing.having(columns=best)


def _fits(width: float, height: float) -> bool:
    """Is a drawing of this size within a page?"""
    slim = height <= _SLIM * max(width, _LEGEND)
    return slim and width <= 4 * height and width <= MOST_WIDE and height <= MOST_HIGH


def _flow(drawing: Drawing) -> _Flow:
    found = sizes(drawing)
    keys = _order(drawing, found)
    around = drawing.tree.paths
    places = {key: place for place, key in enumerate(keys)}
    paths = [around[key] for key in keys]
    sources: list[list[_Source]] = [[] for _ in keys]
    crossing = [0] * (len(keys) + 1)  # edges that begin or end to cross there
    for source, target in drawing.ends:
        above, below = places[source], places[target]
        outer, inner = paths[above], paths[below]
        same = _common(outer, inner) if outer and inner else 0
        labelled = source < 0 or target < 0
        edge = _Source(above, len(inner) - same, len(outer) - same, labelled)
        sources[below].append(edge)
        if above < below:
            crossing[above + 1] += 1
            crossing[below + 1] -= 1
    cutting = []
    crossed = 0
    for place, (before, after) in enumerate(pairwise(paths), 1):
        crossed += crossing[place]
        cutting.append(_SPLIT * _common(before, after) + _CROSSING * crossed)
    widths, heights = [found[key][0] for key in keys], [found[key][1] for key in keys]
    return _Flow(keys, paths, widths, heights, sources, [0.0, *cutting])


def _order(drawing: Drawing, keys: Iterable[int]) -> list[int]:
    """The keys in a topological order that follows the tree of groups as far as it can."""
    if drawing.groups is None and all(source < target for source, target in drawing.ends):
        return drawing.nodes
    users: dict[int, list[int]] = defaultdict(list)
    waiting: Counter[int] = Counter()
    for source, target in drawing.ends:
        users[source].append(target)
        waiting[target] += 1
    places = {key: drawing.place(key) for key in keys}
    ready = [(where, key) for key, where in places.items() if not waiting[key]]
    heapify(ready)
    order: list[int] = []
    while ready:
        key = heappop(ready)[1]
        order.append(key)
        for user in users[key]:
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, (places[user], user))
    # Closed groups can make a circle: what waits for itself comes last.
    done = set(order)
    return order + sorted(places.keys() - done, key=places.__getitem__)


def _measure(flow: _Flow, cuts: list[int]) -> Columns:
    """About the size of a drawing that is cut at these places: columns have common ranks."""
    keys, paths, widths, heights, sources, _ = flow
    rank = [0] * len(keys)  # of each place
    most = len(keys) + len(cuts) + 1  # ranks
    high = [0.0] * most  # by rank: its nodes
    above = [0] * most  # and the frames that open above them
    below = [0] * most  # and those that end below them
    width, deep = 0.0, 0
    label = 0.0  # room for labels between ranks
    anchors: list[int | None] = []
    for i, (begin, end) in enumerate(pairwise(cuts)):
        wide = [0.0] * most
        passing = [0] * (most + 1)  # by rank: edges that begin or end to pass it
        anchor = _anchor(paths, cuts[i - 1], begin) if i else None
        anchors.append(None if anchor is None else keys[anchor])
        start = 0 if anchor is None else rank[anchor]
        for place in range(begin, end):
            level = start
            outside = len(paths[place])
            for source, opened, closed, labelled in sources[place]:
                if begin <= source < place:
                    here = rank[source]
                    if here >= level:
                        level = here + 1
                    if opened < outside:
                        outside = opened
                    if closed > below[here]:
                        below[here] = closed
                    if labelled:
                        label = _LABEL
                elif level == start and not begin <= source < end:
                    level = start + 1  # for the circle above
            rank[place] = level
            wide[level] += widths[place] + _BESIDE
            if heights[place] > high[level]:
                high[level] = heights[place]
            if outside > above[level]:
                above[level] = outside
            for source, _, _, labelled in sources[place]:
                if begin <= source < place and rank[source] + 1 < level:
                    if labelled:
                        wide[(level + rank[source]) // 2] += _LABEL_WIDE
                    passing[rank[source] + 1] += 1
                    passing[level] -= 1
        deep = max(deep, *rank[begin:end])
        edges = accumulate(passing)
        widest = max([nodes + _EDGE * count for nodes, count in zip(wide, edges, strict=False)])
        frames = max(map(len, paths[begin:end]))
        width += widest + 2 * _FRAME_SIDE * frames + 20
    height = sum(high) + _FRAME_TOP * sum(above) + _FRAME_BOTTOM * sum(below)
    height += (deep + 1) * (_RANKS + label) + _BELOW
    parts = tuple([tuple(keys[begin:end]) for begin, end in pairwise(cuts)])
    return Columns(parts, tuple(anchors), width, height, _fits(width, height))


def _anchor(paths: list[Path], before: int, begin: int) -> int | None:
    """The first place of the innermost frame that a column goes on with; None for no frame.

    Args:
        before: where the column before it begins.
    """
    shared = _common(paths[begin - 1], paths[begin])
    if not shared:
        return None
    frame = paths[begin][shared - 1]
    return next(place for place in range(before, begin) if frame in paths[place])


def _common(a: Path, b: Path) -> int:
    same = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        same += 1
    return same


def _divide(flow: _Flow, aim: float) -> list[int]:
    """Where to cut into parts of about `aim` height: where the fewest frames and edges are."""
    heights, sources, cutting = flow.heights, flow.sources, flow.cutting
    count = len(heights)
    bottom = [0.0] * count
    cuts = [0]
    while cuts[-1] < count:
        start = cuts[-1]
        best, cheapest = 0, inf
        reached = 0.0
        for place in range(start, count):
            top = 0.0
            for source, opened, closed, _ in sources[place]:
                if start <= source < place:
                    frames = opened * _FRAME_TOP + closed * _FRAME_BOTTOM
                    top = max(top, bottom[source] + _RANKS + frames)
            bottom[place] = top + heights[place]
            reached = max(reached, bottom[place])
            if reached > 1.25 * aim and best:
                break
            if reached > 0.6 * aim and place + 1 < count:
                cost = abs(reached - aim) + cutting[place + 1]
                if cost < cheapest:
                    best, cheapest = place + 1, cost
        else:
            best = count
        cuts.append(best)
    return cuts
