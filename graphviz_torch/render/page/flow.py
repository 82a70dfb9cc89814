"""A drawing as a row of sizes, in the order in which it is put in columns.

The size of a drawing is estimated, for only Graphviz knows it: a rank is as high as its highest
node and as wide as its nodes and the edges that pass between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

from ..cuts import cut_lines
from ..drawing.drawing import Drawing
from ..drawing.tree import Path
from ..wording import tells
from .edge_lengths import lengths
from .sizes import sizes

RANKS: Final = 26.0  # between two ranks
FRAME_TOP, FRAME_BOTTOM, FRAME_SIDE = 24.0, 9.0, 9.0
BELOW: Final = 60.0  # the legend
_BESIDE, _EDGE = 16.0, 14.0  # the widths of what parts two nodes, and of an edge that passes
_LETTER = 7.0  # the width of a letter of a frame's title
_LABEL, _LABEL_WIDE = 14.0, 70.0  # of an edge at a closed group
# What a divided frame costs, a tensor to another column, and each more, in points: one alone has an
# arrow, several have circles.
_SPLIT, _CROSSING, _MORE = 250.0, 60.0, 150.0


class _Source(NamedTuple):
    """An edge, as seen from its target."""

    place: int  # of the source
    opened: int  # frames around the target that it enters
    closed: int  # frames around the source that it leaves
    labelled: bool
    ranks: int  # that it spans, at least


class Flow(NamedTuple):
    """What is put in columns: by place, which is the position in topological order."""

    keys: list[int]
    paths: list[Path]
    widths: list[float]
    heights: list[float]
    sources: list[list[_Source]]
    cutting: list[float]  # what it costs to begin a column there
    pieces: list[int]  # where each piece begins, which no edge joins to another
    titles: list[float]  # of each piece, the width of its frame's title


class Extent(NamedTuple):
    """About how large a row of columns is."""

    width: float  # points
    height: float
    beside: list[int | None]  # as in Columns
    end: tuple[int, int]  # as in Columns


def flow_of(drawing: Drawing) -> Flow:
    """The sizes of all that is drawn, one piece after the other."""
    found = sizes(drawing)
    keys = _order(drawing, found)
    pieces = pieces_of(drawing, keys)
    if len(pieces) > 1:
        keys = list(chain.from_iterable(pieces))
    begins = [0, *accumulate(map(len, pieces[:-1]))]
    titles = [_title(drawing, piece) if len(pieces) > 1 else 0.0 for piece in pieces]
    around = drawing.tree.paths
    places = {key: place for place, key in enumerate(keys)}
    paths = [around[key] for key in keys]
    sources: list[list[_Source]] = [[] for _ in keys]
    long = lengths(drawing)
    far: dict[int, int] = {}  # source -> its last target
    for source, target in drawing.ends:
        above, below = places[source], places[target]
        outer, inner = paths[above], paths[below]
        same = _common(outer, inner) if outer and inner else 0
        labelled = not tells(drawing, source)
        ranks = long.get((source, target), 1)
        edge = _Source(above, len(inner) - same, len(outer) - same, labelled, ranks)
        sources[below].append(edge)
        far[above] = max(below, far.get(above, above))
    crossing = [0] * (len(keys) + 1)  # tensors that begin or end to cross there
    for above, below in far.items():
        crossing[above + 1] += 1
        crossing[below + 1] -= 1
    cutting = []
    crossed = 0
    for place, (before, after) in enumerate(pairwise(paths), 1):
        crossed += crossing[place]
        tensors = _CROSSING * min(1, crossed) + _MORE * max(0, crossed - 1)
        cutting.append(_SPLIT * _common(before, after) + tensors)
    widths, heights = [found[key][0] for key in keys], [found[key][1] for key in keys]
    return Flow(keys, paths, widths, heights, sources, [0.0, *cutting], begins, titles)


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


def pieces_of(drawing: Drawing, keys: list[int]) -> list[list[int]]:
    """The keys of each piece: a frame, or what edges join to each other."""
    piece = {key: [key] for key in keys}  # of each key: all of its piece, in no order
    frames: dict[int, int] = {}  # outermost ones, by a key inside
    framed = []
    if drawing.groups is not None:
        around = drawing.tree.paths
        framed = [(frames.setdefault(path[0], key), key) for key in keys if (path := around[key])]
    cuts = [
        (cut.source, cut.target)
        for cut in cut_lines(drawing, len(keys))[0]
        if cut.source is not None and cut.target is not None
    ]
    for one, other in (*drawing.ends, *framed, *cuts):
        more, less = piece[one], piece[other]
        if more is not less:
            if len(more) < len(less):
                more, less = less, more
            more += less
            piece.update(dict.fromkeys(less, more))
    found: dict[int, list[int]] = {}
    for key in keys:
        found.setdefault(id(piece[key]), []).append(key)
    return list(found.values())


def _title(drawing: Drawing, piece: list[int]) -> float:
    """The width of the widest title among the outermost frames of a piece."""
    around = drawing.tree.paths
    frames = {path[0] for key in piece if (path := around[key])}
    letters = max([len(drawing.described(number)) for number in frames], default=0)
    return letters * _LETTER + 4 * FRAME_SIDE if letters else 0.0


def measure(flow: Flow, cuts: Sequence[int]) -> Extent:
    """About the size of a row of columns that are cut at these places: they have common ranks."""
    keys, paths, widths, heights, sources = flow[:5]
    rank = [0] * cuts[-1]  # of each place
    most = cuts[-1] - cuts[0] + len(cuts) + 1  # ranks
    most += sum([edge.ranks - 1 for edges in sources[cuts[0] : cuts[-1]] for edge in edges])
    high = [0.0] * most  # by rank: its nodes
    above = [0] * most  # and the frames that open above them
    below = [0] * most  # and those that end below them
    width, deep = 0.0, 0
    label = 0.0  # room for labels between ranks
    beside: list[int | None] = []
    for i, (begin, end) in enumerate(pairwise(cuts)):
        anchor = _anchor(paths, cuts[i - 1], begin) if i else None
        beside.append(None if anchor is None else keys[anchor])
        start = 0 if anchor is None else rank[anchor]
        wide = [0.0] * most
        passing = [0] * (most + 1)  # by rank: edges that begin or end to pass it
        for place in range(begin, end):
            level = start
            outside = len(paths[place])
            for source, opened, closed, labelled, ranks in sources[place]:
                if begin <= source < place:
                    here = rank[source]
                    if here + ranks > level:
                        level = here + ranks
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
            for source, _, _, labelled, _ in sources[place]:
                if begin <= source < place and rank[source] + 1 < level:
                    if not sources[source] and rank[source] == start:
                        # What nothing leads to stands above what uses it.
                        wide[start] -= widths[source] + _BESIDE
                        wide[level - 1] += widths[source] + _BESIDE
                        rank[source] = level - 1
                        continue
                    if labelled:
                        wide[(level + rank[source]) // 2] += _LABEL_WIDE
                    passing[rank[source] + 1] += 1
                    passing[level] -= 1
        deep = max(deep, *rank[begin:end])
        edges = accumulate(passing)
        widest = max([nodes + _EDGE * count for nodes, count in zip(wide, edges, strict=False)])
        around = max(map(len, paths[begin:end]))
        width += widest + 2 * FRAME_SIDE * around + 20
    height = sum(high) + FRAME_TOP * sum(above) + FRAME_BOTTOM * sum(below)
    height += (deep + 1) * (RANKS + label) + BELOW
    last = max(range(cuts[0], cuts[1]), key=rank.__getitem__)
    circles = any(begin not in flow.pieces for begin in cuts[:-1])  # one may be below all else
    return Extent(width, height, beside, (keys[last], deep + 1 + circles - rank[last]))


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
