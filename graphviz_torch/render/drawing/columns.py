"""The step that puts a tall drawing in columns: the flow goes on at the top of the next one.

The size of a drawing is estimated, for only Graphviz knows it: a rank is as high as its highest
node and as wide as its nodes and the edges that pass between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from .. import labels
from .drawing import Columns, Drawing
from .level import paged
from .tree import Path

# A page in points. What is drawn stays within 2,400 and 1 : 4; an estimate can be a sixth too low.
MOST_HIGH: Final = 2050.0
MOST_WIDE: Final = 2100.0
_SLIM = 3.3  # times as high as wide, at most
_LEGEND = 350.0  # the width of the legend: nothing is narrower
_COLUMNS = 5
_TITLE, _SMALL, _MARGIN, _RANKS = 14.0, 9.0, 8.6, 26.0  # heights
_FRAME_TOP, _FRAME_BOTTOM, _FRAME_SIDE = 24.0, 9.0, 9.0
_LETTER, _BESIDE, _EDGE = 5.2, 16.0, 14.0  # widths
_STUB = 75.0  # the width of each name beside a node whose edge is not drawn
_BELOW = 60.0  # the legend
_LABEL, _LABEL_WIDE = 14.0, 70.0  # of an edge at a closed group
_SPLIT, _CROSSING = (
    250.0,
    60.0,
)  # what a divided frame and an edge to another column cost, in points


def arrange(drawing: Drawing) -> Drawing:
    """The drawing in as few columns as make it fit a page; in those that come nearest, where none.

    One whose data flows sideways has one column.
    """
    if not paged(drawing):
        whole = (*drawing.nodes, *(~box for box in drawing.boxes))
        return drawing.having(columns=Columns((whole,)))
    sizes = _sizes(drawing)
    keys = _order(drawing, sizes)
    paths = drawing.tree.paths
    sources: dict[int, list[int]] = defaultdict(list)
    for source, target in drawing.ends:
        sources[target].append(source)
    one = _measure(drawing, (tuple(keys),), sizes, paths, sources)
    found = [one]
    for count in range(2, _COLUMNS + 1):
        if found[-1].fits:
            return drawing.having(columns=found[-1])
        parts = _divide(keys, one.height / count, sizes, paths, sources)
        found.append(_measure(drawing, parts, sizes, paths, sources))
    best = min(found, key=lambda c: (not c.fits, max(c.height / MOST_HIGH, c.width / MOST_WIDE)))
    return drawing.having(columns=best)


def _fits(width: float, height: float) -> bool:
    """Is a drawing of this size within a page?"""
    slim = height <= _SLIM * max(width, _LEGEND)
    return slim and width <= 4 * height and width <= MOST_WIDE and height <= MOST_HIGH


def divided(drawing: Drawing, parts: tuple[tuple[int, ...], ...], i: int) -> int | None:
    """The first key of the innermost frame that column `i` goes on with; None for no frame."""
    paths = drawing.tree.paths
    before, here = paths[parts[i - 1][-1]], paths[parts[i][0]]
    shared = before[: _common(before, here)]
    if not shared:
        return None
    inside = (key for key in parts[i - 1] if shared[-1] in paths[key])
    return next(inside)


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


def _sizes(drawing: Drawing) -> dict[int, tuple[float, float]]:
    graph = drawing.graph
    sizes = {}
    inside, alone_in = drawing.inner.inside, drawing.alone
    for i in drawing.nodes:
        node = graph.nodes[i]
        letters = max(len(node.title) * 1.25, len(labels.tensors(node.outputs)), 8)
        gradients = sum([g is not None for g in node.grad_outputs]) if node.grad_outputs else 0
        high = _TITLE + _SMALL * (1 + gradients) + _MARGIN
        names = [node.label] if node.label else []
        if i in alone_in:
            names.append(f"{alone_in[i]} · {node.module_class.rpartition('/')[2]}")
        for name in names:
            high += _TITLE
            letters = max(letters, 1.35 * len(name))
        for line in labels.details(node):
            high += _SMALL
            letters = max(letters, len(line))
        for edge in inside.get(i, ()):
            high += _SMALL
            leaf = graph.nodes[edge.source]
            shapes = sum(len(labels.shape(meta)) + 1 for meta in leaf.outputs if meta is not None)
            letters = max(letters, len(labels.within(node, leaf.label)) + shapes)
        sizes[i] = letters * _LETTER + 2 * 10, high
    for number in drawing.boxes:
        letters = 1.35 * len(drawing.title(number))
        sizes[~number] = max(letters, 22) * _LETTER + 20, _TITLE + 3 * _SMALL + _MARGIN
    for named in (drawing.before, drawing.behind):
        for key, others in named.items():
            width, height = sizes[key]
            sizes[key] = width + _STUB * min(len(others), 4), height
    return sizes


def _measure(
    drawing: Drawing,
    parts: tuple[tuple[int, ...], ...],
    sizes: dict[int, tuple[float, float]],
    paths: dict[int, Path],
    sources: dict[int, list[int]],
) -> Columns:
    """About the size of a drawing in these columns: they have their ranks in common."""
    rank: dict[int, int] = {}
    high: defaultdict[int, float] = defaultdict(float)  # by rank: its nodes
    above: defaultdict[int, float] = defaultdict(float)  # and the tops of frames above them
    below: defaultdict[int, float] = defaultdict(float)  # and the ends of frames below them
    width = 0.0
    label = 0.0  # room for labels between ranks
    for i, part in enumerate(parts):
        wide: defaultdict[int, float] = defaultdict(float)
        anchor = divided(drawing, parts, i) if i else None
        start = 0 if anchor is None else rank[anchor]
        inside = set(part)
        for key in part:
            path = paths[key]
            level = start
            outside = len(path)  # frames that open above it
            for source in sources[key]:
                if source in inside and source in rank:
                    here = rank[source]
                    if path or paths[source]:  # frames
                        same = _common(path, paths[source])
                        outside = min(outside, len(path) - same)
                        ends = (len(paths[source]) - same) * _FRAME_BOTTOM
                        below[here] = max(below[here], ends)
                    level = max(level, here + 1)
                    if key < 0 or source < 0:
                        label = _LABEL
                elif source not in inside:
                    level = max(level, start + 1)  # for the circle above
            rank[key] = level
            wide[level] += sizes[key][0] + _BESIDE
            high[level] = max(high[level], sizes[key][1])
            above[level] = max(above[level], outside * _FRAME_TOP)
            for source in sources[key]:
                if source in inside and rank.get(source, level) + 1 < level:
                    labelled = key < 0 or source < 0
                    wide[(level + rank[source]) // 2] += labelled and _LABEL_WIDE
                    for passed in range(rank[source] + 1, level):
                        wide[passed] += _EDGE
        deepest = max((len(paths[key]) for key in part), default=0)
        width += max(wide.values(), default=0) + 2 * _FRAME_SIDE * deepest + 20
    ranks = max(high, default=0) + 1
    height = sum(high.values()) + sum(above.values()) + sum(below.values())
    height += ranks * (_RANKS + label) + _BELOW
    return Columns(parts, width, height, _fits(width, height))


def _common(a: Path, b: Path) -> int:
    same = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        same += 1
    return same


def _divide(
    keys: list[int],
    aim: float,
    sizes: dict[int, tuple[float, float]],
    paths: dict[int, Path],
    sources: dict[int, list[int]],
) -> tuple[tuple[int, ...], ...]:
    """The keys in parts of about `aim` height, cut where the fewest frames and edges are."""
    place = {key: i for i, key in enumerate(keys)}
    open_edges = [0] * (len(keys) + 1)
    for i, key in enumerate(keys):
        for source in sources[key]:
            if place.get(source, i) < i:
                open_edges[place[source] + 1] += 1
                open_edges[i + 1] -= 1
    for i in range(1, len(open_edges)):
        open_edges[i] += open_edges[i - 1]
    parts: list[list[int]] = []
    start = 0
    while start < len(keys):
        bottom: dict[int, float] = {}
        best: tuple[float, int] | None = None
        reached = 0.0
        for i in range(start, len(keys)):
            key = keys[i]
            path = paths[key]
            top = 0.0
            for source in sources[key]:
                if source in bottom:
                    same = _common(path, paths[source])
                    frames = (len(path) - same) * _FRAME_TOP
                    frames += (len(paths[source]) - same) * _FRAME_BOTTOM
                    top = max(top, bottom[source] + _RANKS + frames)
            bottom[key] = top + sizes[key][1]
            reached = max(reached, bottom[key])
            if reached > 1.25 * aim and best is not None:
                break
            if i + 1 < len(keys) and reached > 0.6 * aim:
                split = _common(path, paths[keys[i + 1]])
                cost = abs(reached - aim) + _SPLIT * split + _CROSSING * open_edges[i + 1]
                if best is None or cost < best[0]:
                    best = cost, i + 1
        else:
            best = None
        end = len(keys) if best is None else best[1]
        parts.append(keys[start:end])
        start = end
    return tuple(map(tuple, parts))
