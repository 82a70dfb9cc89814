"""Estimate the sizes of boxes, and of a drawing whose groups, edges and data are known.

All sizes are in points. Only Graphviz knows the exact widths of letters.

The estimate follows Graphviz. Each box has a rank below the ranks of its inputs; ranks are those of
the whole picture, not of one frame. A frame adds its width to each rank from its first to its last
box. An edge adds a small width to each rank that it passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from .. import cuts, labels, wording
from .drawing import Drawing
from .values import End, Path, Stub, common_path

Size = tuple[float, float]  # width and height, in points

_TITLE_HEIGHT: Final = 14.5  # points per line
_DETAIL_HEIGHT: Final = 11.5  # points per line of small text
_MARGIN: Final = 9.0  # sum of the points above and below the text of a box
_SIDES: Final = 22.0  # sum of the points left and right of the text
_BOLD, _PLAIN, _NARROW = 8.1, 7.2, 5.9  # points per letter: bold title, plain title, small text


class Sizes:
    """Estimated sizes of all boxes that a drawing may have."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._known: dict[int, Size] = {}
        rows = drawing.families.values() if drawing.fold else ()
        self._times = {alike[0] for row in rows for alike in row if len(alike) > 1}
        self._devices = 55.0 if drawing.shows_devices else 0.0

    def box(self, key: int) -> Size:
        """Return width and height of the box of a node or closed group, in points."""
        size = self._known.get(key)
        if size is None:
            size = self._known[key] = self._node(key) if key >= 0 else self._group(~key)
        return size

    def set_stub(self, key: int, stub: Stub) -> None:
        """Estimate the size of the box for data or for a call without a node, and store it.

        Args:
            key: key under which `box` returns the size.
            stub: the box.
        """
        small = max(map(len, stub.details), default=0)
        if stub.listed:
            wide = max(_BOLD * len(name) + _NARROW * len(shape) for name, shape in stub.listed)
            self._known[key] = wide, _TITLE_HEIGHT * len(stub.listed) + _MARGIN
            return
        lines = stub.title_lines
        wide = max(_BOLD * max(map(len, lines)), _NARROW * small)
        high = _TITLE_HEIGHT * len(lines) + _DETAIL_HEIGHT * len(stub.details) + _MARGIN
        self._known[key] = wide + (0.0 if stub.is_data else _SIDES), high

    def title(self, number: int) -> float:
        """Return the width of a frame's title, in points."""
        return self._width([self._group_title(number)])

    def _group_title(self, number: int) -> str:
        assert self._drawing.groups is not None
        part = self._drawing.groups.groups[number]
        return labels.with_class(part.name.partition("#")[0], part.module_class)

    def _width(self, names: list[str]) -> float:
        width = self._drawing.line_width
        lines = [line for name in names for line in labels.wrap_name(name, width).split("\n")]
        return _BOLD * max(map(len, lines), default=0) + _SIDES

    def _node(self, i: int) -> Size:
        drawing, node = self._drawing, self._drawing.graph.nodes[i]
        names = wording.node_names(drawing, node)
        said = wording.operation_text(drawing, node)
        small = [labels.tensors(drawing.outputs_of(i), device=False)]
        small += wording.small_values(drawing, node) + wording.gradients(drawing, node)
        lines = len(small) + len(wording.inner_leaves(drawing, node))
        width = max(
            self._width(names),
            _PLAIN * len(said) + _SIDES,
            _NARROW * max(map(len, small)) + _SIDES + self._devices,
        )
        height = _TITLE_HEIGHT * (len(names) + bool(said)) + _DETAIL_HEIGHT * lines + _MARGIN
        return width, height

    def _group(self, number: int) -> Size:
        drawing = self._drawing
        assert drawing.groups is not None
        title = self._group_title(number)
        lines = 1 if drawing.options["detail"] == "short" else 4
        if number in self._times:
            title += 8 * " "  # space for the number of identical groups
        height = (
            _TITLE_HEIGHT * len(labels.wrap_name(title, drawing.line_width).split("\n"))
            + _DETAIL_HEIGHT * lines
            + _MARGIN
        )
        return max(self._width([title]), 110.0), height


# Points that are scaled to a page of 622 x 1,125 points. A picture may be a tenth higher than its
# estimate.
_MAX_WIDTH, _MAX_HEIGHT = 865.0, 1415.0
_NARROWED: Final = 40.0  # points by which Graphviz narrows a picture of a low height
_RANK_GAP: Final = 18.7  # points between ranks
_BOX_GAP: Final = 16.0  # points between the boxes of a rank
_EDGE_WIDTH: Final = 18.0  # points that an edge needs beside the boxes that it passes
_FRAME_SIDES: Final = 16.0  # points that a frame adds left and right
_FRAME_TOP, _FRAME_BOTTOM = 24.0, 8.0  # points that a frame adds above and below
_LEGEND_HEIGHT: Final = 50.0  # points
_FINDING_HEIGHT: Final = 26.0  # points of a finding below the picture
_MAX_FINDINGS: Final = 6  # findings below the picture
_SMALL_LETTER: Final = 5.9  # points
_MAX_CUTS: Final = 40


def page_share(drawing: Drawing) -> float:
    """Return the share of the largest page that a drawing with its data fills, as an estimate.

    A drawing that fills the page is scaled until its text is 9 px high.
    """
    width, height = picture_size(drawing)
    high = height / _MAX_HEIGHT
    # Graphviz makes a picture narrower if the page has space below the picture.
    return max(width / (_MAX_WIDTH + _NARROWED * max(0.0, 1 - high)), high)


def picture_size(drawing: Drawing) -> Size:
    """Return the estimated width and height of a drawing with its data, in points."""
    return _Picture(drawing).size()


class _Picture:
    """The boxes of a drawing with their sizes, the frames around them, and the edges."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._sizes = Sizes(drawing)
        first = len(drawing.graph.nodes)  # keys of stubs begin here

        def key_of(end: End) -> int:
            return first + end.position if isinstance(end, Stub) else end

        self._paths: dict[int, Path] = {}
        for stub in drawing.stubs.stubs:
            framed = [number for number in stub.frames if number in drawing.tree.framed_groups]
            self._paths[key_of(stub)] = tuple(framed)
            self._sizes.set_stub(key_of(stub), stub)
        self._paths.update(
            sorted(drawing.tree.paths.items(), key=lambda item: drawing.place(item[0]))
        )
        self._boxes: dict[int, Size] = {key: self._sizes.box(key) for key in self._paths}
        links = [(key_of(source), key_of(target)) for source, target in drawing.stubs.links]
        edges = dict.fromkeys([*drawing.ends, *links], 0.0)  # (source, target) -> width of the text
        for line in drawing.all_edges:
            if label := wording.edge_label(drawing, line):
                edges[line.source, line.target] = _SMALL_LETTER * len(label)
        for cut in cuts.cut_lines(drawing, _MAX_CUTS)[0]:
            text = _SMALL_LETTER * max(map(len, cut.text))
            if cut.source is not None and cut.target is not None:
                edges[cut.source, key_of(cut.call or cut.target)] = text
            else:
                wide, high = self._boxes[cut.key]
                self._boxes[cut.key] = wide + text + 2 * _BOX_GAP, high
        self._order = _in_order([*self._paths], [*edges])
        position = {key: i for i, key in enumerate(self._order)}
        self._edges = {
            (a, b) if position[a] < position[b] else (b, a): text
            for (a, b), text in edges.items()
            if a != b
        }

    def size(self) -> Size:
        """Return the width and height in points."""
        ranks = self._rank()
        spans: dict[int | None, list[tuple[int, int, float]]] = defaultdict(list)
        first: dict[int, int] = {}  # frame -> its first rank
        last: dict[int, int] = {}
        outer: dict[int, int | None] = {}
        for key, path in self._paths.items():
            rank = 2 * ranks[key]  # the texts of edges are between two ranks
            spans[path[-1] if path else None].append((rank, rank, self._boxes[key][0] + _BOX_GAP))
            for i, number in enumerate(path):
                first[number] = min(first.get(number, rank), rank)
                last[number] = max(last.get(number, rank), rank)
                outer[number] = path[i - 1] if i else None
        for (a, b), text in self._edges.items():
            if ranks[b] - ranks[a] > 1 or text:
                shared = common_path([self._paths[a], self._paths[b]])
                level = spans[shared[-1] if shared else None]
                level.append((2 * ranks[a] + 1, 2 * ranks[b] - 1, _EDGE_WIDTH))
                if text:
                    middle = (ranks[a] + ranks[b]) // 2 * 2 + 1
                    level.append((middle, middle, text))
        depth = {number: i for path in self._paths.values() for i, number in enumerate(path)}
        for number in sorted(depth, key=depth.__getitem__, reverse=True):
            wide = max(_width(spans[number]), self._sizes.title(number)) + _FRAME_SIDES
            spans[outer[number]].append((first[number], last[number], wide + _BOX_GAP))
        return _width(spans[None]), self._height(ranks)

    def _rank(self) -> dict[int, int]:
        """Return the rank of each box."""
        users: dict[int, list[int]] = defaultdict(list)
        inputs: dict[int, list[int]] = defaultdict(list)
        for a, b in self._edges:
            users[a].append(b)
            inputs[b].append(a)
        ranks: dict[int, int] = {}
        for key in self._order:
            ranks[key] = max([ranks[source] + 1 for source in inputs[key]], default=0)
        for key in reversed(self._order):
            # Move a box down, close to its users. Inputs of the box that have at least as many
            # users as inputs are moved, too.
            moved, gain, slack = [key], 0, len(ranks)
            for each in moved:
                gain += len(users[each]) - len(inputs[each])
                free = [ranks[u] - ranks[each] - 1 for u in users[each] if u not in moved]
                slack = min(slack, min(free, default=slack))
                for source in dict.fromkeys(inputs[each]):
                    others = [u for u in users[source] if u not in moved]
                    fixed = any(ranks[u] - ranks[source] < 2 for u in others)
                    if source in moved or fixed:
                        continue
                    if len(users[source]) >= len(inputs[source]):
                        moved.append(source)
            if users[key] and gain >= 0:
                for each in moved:
                    ranks[each] += slack
        return ranks

    def _height(self, ranks: dict[int, int]) -> float:
        first: dict[int, int] = {}  # frame -> its first rank
        last: dict[int, int] = {}
        for key, path in self._paths.items():
            for number in path:
                first[number] = min(first.get(number, ranks[key]), ranks[key])
                last[number] = max(last.get(number, ranks[key]), ranks[key])
        high: dict[int, float] = defaultdict(float)
        above: dict[int, float] = defaultdict(float)
        below: dict[int, float] = defaultdict(float)
        for key, path in self._paths.items():
            rank = ranks[key]
            high[rank] = max(high[rank], self._boxes[key][1])
            above[rank] = max(above[rank], _FRAME_TOP * sum(first[n] == rank for n in path))
            below[rank] = max(below[rank], _FRAME_BOTTOM * sum(last[n] == rank for n in path))
        frames = sum(above.values()) + sum(below.values())
        findings = min(_MAX_FINDINGS, len(self._drawing.findings)) * _FINDING_HEIGHT
        boxes = sum(high.values()) + _RANK_GAP * (len(high) - 1)
        return boxes + frames + findings + _LEGEND_HEIGHT


def _in_order(keys: Sequence[int], ends: Sequence[tuple[int, int]]) -> list[int]:
    """Return the keys in topological order. Keys in a cycle of edges keep the given order."""
    users: dict[int, list[int]] = defaultdict(list)
    waiting = dict.fromkeys(keys, 0)  # number of inputs that are not in `ordered`
    for a, b in ends:
        users[a].append(b)
        waiting[b] += 1
    ordered: list[int] = []
    ready = [key for key in keys if not waiting[key]]
    rest = iter(keys)
    done = set(ready)
    while len(ordered) < len(keys):
        if not ready:
            ready = [next(key for key in rest if key not in done)]
            done.update(ready)
        key = ready.pop(0)
        ordered.append(key)
        for user in users[key]:
            waiting[user] -= 1
            if not waiting[user] and user not in done:
                done.add(user)
                ready.append(user)
    return ordered


def _width(spans: Sequence[tuple[int, int, float]]) -> float:
    """Return the width of the widest row, given (first row, last row, width) of each box."""
    change: dict[int, float] = defaultdict(float)
    for begin, end, wide in spans:
        change[begin] += wide
        change[end + 1] -= wide
    here = most = 0.0
    for rank in sorted(change):
        here += change[rank]
        most = max(most, here)
    return most
