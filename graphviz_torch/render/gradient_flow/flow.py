"""Draw the gradient flow of a step, from data to loss, as SVG: `draw_flow`.

The picture has one panel for each step that is drawn. A panel has one row for each node and each
cut, from the data at the top to the loss at the bottom. The SVG follows the reader's dark mode and
loads no other file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil

from ...graph import GraphLike
from ...graph.immutable import NamedTuple
from ...graph.units import number_text
from ..chart import svg_escape, svg_start, svg_text
from ..dot.picture import Picture
from ..labels import TIMES
from ..resolve import graph_and_findings
from ..style import COLORS, NONFINITE
from .diagram import FlowCut, FlowDiagram, FlowLink, FlowNode, fold_blocks, tracks
from .from_graph import flow_diagram
from .shapes import (
    GRADIENT_COLOR,
    LEFT_MARGIN,
    MAX_WIDTH,
    Scale,
    bold_text,
    cut_mark,
    fit_text,
    leader,
    legend,
    node_mark,
    parameter_marks,
    text_width,
)

# width of the picture in pixels: with several columns, with one column
_WIDTH, _COLUMN_WIDTH = 1200, 700
_MAX_ROWS, _MAX_COLUMNS = 36, 4  # maximum number of rows in a column, and of columns
_HEAD, _FOOT = 88, 84  # pixels above and below the rows
_BEND = 28  # pixels below a column for links that continue in the next column
_NODE_HEIGHT, _SMALL_NODE_HEIGHT, _CUT_HEIGHT, _TITLE_HEIGHT = 40, 20, 34, 34  # pixels
# total width of the lanes, and maximum distance between neighboring lanes, in pixels
_LANES_WIDTH, _MAX_LANE_PITCH = 230.0, 54.0
_NORM_WIDTH = 54  # pixels for the norm beside a node
_GAP = 10  # pixels between two texts of a line
_MIN_NAME_WIDTH, _MIN_KIND_WIDTH = 90, 40  # pixels


class _Row(NamedTuple):
    """A row of a panel: a node, a cut, or the title of a backward pass."""

    place: FlowNode | None
    cut: FlowCut | None
    title: str  # title of the backward pass whose nodes follow; "" in any other row
    height: float  # pixels


def draw_flow(graph: GraphLike, after: GraphLike | None = None) -> Picture:
    """Return the gradient flow of a step, with the data at the top and the loss below.

    A node is a module, at the deepest level of modules that fits the picture. Operations outside of
    modules belong to the module before them. The number at a module, and the width of the module's
    shape, show the gradient norm of the module's output.

    A link is a result that one node passes to another. The width of a link shows, on a logarithmic
    scale, the norm of the result's gradient, summed over all users of the result.

    The colors of a node and of its parameters show whether they learn, are frozen, or learn
    nothing. A parameter learns nothing if no gradient arrived, if the gradient's norm was below
    1e-12, or if the parameter is in no optimizer. A bar is a cut, such as a detach, with its
    operation and source line.

    Args:
        graph: a recording, its graph, or a `Training`, of which the last step is drawn.
        after: another step to draw beside the first on the same scale, such as after a fix.

    Raises:
        TypeError: if an argument is not a recording, a graph or a `Training`.
        ValueError: if an argument has no autograd graph.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Linear(2, 1)
    >>> with record(model) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> "All 2 parameters learn." in draw_flow(recording).source
    True
    """
    given = [graph] if after is None else [graph, after]
    diagrams = [fold_blocks(flow_diagram(*graph_and_findings(each))) for each in given]
    scale = Scale([norm for diagram in diagrams for norm in _norms(diagram)])
    panels = [_Panel(diagram, scale) for diagram in diagrams]
    if len(panels) > 1:
        width = _WIDTH
        for panel in panels:
            panel.fit(_WIDTH / 2, 1)
        slim = min(panel.slim for panel in panels)
        for panel in panels:  # the same gradient norm has the same width in both panels
            panel.slim = slim
    else:
        columns = max(1, min(_MAX_COLUMNS, ceil(len(panels[0].rows) / _MAX_ROWS)))
        width = _WIDTH if columns > 1 else _COLUMN_WIDTH
        panels[0].fit(width, columns)
    bend = _BEND if any(any(panel.column) for panel in panels) else 0
    height = max(panel.height for panel in panels) + bend + _FOOT
    out = [svg_start(width, round(height), " / ".join(diagram.sentence for diagram in diagrams))]
    for number, panel in enumerate(panels):
        left = number * _WIDTH / 2
        out += panel.svg(left, ("before", "after")[number] if len(panels) > 1 else "")
    out += legend(scale, panels[0].slim, height)
    return Picture.of_svg("".join([*out, "</svg>"]))


def _norms(diagram: FlowDiagram) -> Iterator[float]:
    norms = [place.norm for place in diagram.nodes] + [link.norm for link in diagram.links]
    yield from (norm for norm in norms if norm is not None)


class _Panel:
    """The picture of one diagram. `fit` has to set the positions of its rows before `svg`."""

    def __init__(self, diagram: FlowDiagram, scale: Scale) -> None:
        self.diagram, self.scale = diagram, scale
        self.rows, edges = _rows(diagram)
        self.row_lanes, self.tracks = tracks(len(self.rows), edges)
        self.links = edges
        lanes = [lane for track in self.tracks for lane in track.lanes.values()]
        self.lanes = 1 + max([*self.row_lanes, *lanes], default=0)

    def fit(self, width: float, columns: int) -> None:
        """Set the position of each row.

        Args:
            width: pixels of the panel.
            columns: number of columns into which the rows are split.
        """
        self.width = width / columns
        self.pitch: float = min(
            _MAX_LANE_PITCH, _LANES_WIDTH / columns**0.5 / max(1, self.lanes - 1)
        )
        # Factor that makes links narrower if there are many lanes.
        self.slim: float = min(1.0, (self.pitch - 2) / MAX_WIDTH)
        self.text = LEFT_MARGIN + MAX_WIDTH + self.pitch * (self.lanes - 1) + _NORM_WIDTH + 16
        whole = sum(row.height for row in self.rows)
        self.at: list[tuple[float, float]] = []  # (x of the left end, y of the middle) of each row
        self.column: list[int] = []
        y, column = float(_HEAD), 0
        self.height = y
        for row in self.rows:
            if column + 1 < columns and y - _HEAD > whole / columns:
                y, column = float(_HEAD), column + 1
            self.at.append((column * self.width, y + row.height / 2))
            self.column.append(column)
            y += row.height
            self.height = max(self.height, y)

    def svg(self, left: float, title: str) -> Iterator[str]:
        """Yield the SVG of the panel: heading and links first, then rows."""
        diagram = self.diagram
        yield f'<g transform="translate({left:.0f} 0)">'
        color = "transfer_line" if diagram.learns_nothing else "ink"
        head = f"{title}: {diagram.sentence}" if title else diagram.sentence
        size = 15 if title else 18
        max_width = self.width * (1 + max(self.column, default=0)) - 2 * LEFT_MARGIN
        yield bold_text(LEFT_MARGIN, 36, fit_text(head, max_width, size, bold=True), color, size)
        about = "Data enters above. The gradient rises from the loss below."
        if diagram.frozen:
            are = "is" if diagram.frozen == 1 else "are"
            about += f" {diagram.frozen:,} more {are} frozen."
        yield svg_text(LEFT_MARGIN, 58, about, "muted")
        ribbons = [
            ribbon
            for track in self.tracks
            for ribbon in self._track(track.source, track.lanes, track.uses)
        ]
        # Links with bends are drawn first, so that straight links cover them.
        yield from (text for bends, text in ribbons if bends)
        yield from (text for bends, text in ribbons if not bends)
        for number, row in enumerate(self.rows):
            yield from self._row(number, row)
        yield "</g>"

    def _x(self, row: int, lane: int) -> float:
        return self.at[row][0] + LEFT_MARGIN + MAX_WIDTH / 2 + self.pitch * lane

    def _track(
        self, source: int, lanes: dict[int, int], uses: Sequence[int]
    ) -> Iterator[tuple[bool, str]]:
        """Yield (True if the segment bends, SVG) for each segment of a result's link.

        Args:
            source: row of the node that computes the result.
            lanes: row -> lane of the link at that row.
            uses: rows that use the result, in order.
        """
        links = {use: self.links[source, use] for use in uses}
        last = uses[-1]
        for row, below in pairwise(range(source, last + 1)):
            start = self.row_lanes[row] if row == source else lanes[row]
            ends = [self.row_lanes[below]] if below in links else []
            if below < last:
                ends.append(lanes[below])
            later = [links[use] for use in uses if use >= below]
            for i, end in enumerate(ends):
                used = below in links and not i
                link = links[below] if used else later[-1]
                place = self.rows[below].place
                # A straight link that ends here gets the width of the node at which it ends.
                straight = used and start == end and len(ends) == 1
                after = place.norm if straight and place is not None else link.norm
                ribbons = self._segment(row, start, below, end, link, after)
                yield from ((start != end, ribbon) for ribbon in ribbons)

    def _segment(
        self, row: int, start: int, below: int, end: int, link: FlowLink, after: float | None
    ) -> Iterator[str]:
        x0, y0 = self._x(row, start), self.at[row][1]
        x1, y1 = self._x(below, end), self.at[below][1]
        # the link continues at the top of the next column
        if self.column[row] != self.column[below]:
            yield self._ribbon(x0, y0, self._x(row, end), self.height + 4, link, link.norm)
            yield self._ribbon(self._x(below, start), _HEAD - 12, x1, y1, link, after)
            return
        yield self._ribbon(x0, y0, x1, y1, link, after)
        if start == end and link.norm and self._link_width(link.norm) > 12 and y1 - y0 > 24:
            y = (y0 + y1) / 2 + 2  # an arrow in the direction of the gradient
            yield (
                f'<path d="M{x0 - 4:.1f} {y:.1f}l4 -4l4 4" fill="none" '
                f'stroke="{COLORS["background"][0]}" stroke-width="1.6"/>'
            )

    def _ribbon(
        self, x0: float, y0: float, x1: float, y1: float, link: FlowLink, after: float | None
    ) -> str:
        """Return the SVG of a segment of a link, between two rows.

        Args:
            x0, y0: upper end.
            x1, y1: lower end.
            link: the link.
            after: gradient norm that sets the width at the lower end.
        """
        bend = (y0 + y1) / 2
        if not (link.norm or link.nonfinite):  # no gradient
            path = f"M{x0:.1f} {y0:.1f}C{x0:.1f} {bend:.1f} {x1:.1f} {bend:.1f} {x1:.1f} {y1:.1f}"
            line = COLORS["edge"][0]
            return (
                f'<path d="{path}" fill="none" stroke="{line}" stroke-dasharray="2 4" '
                'stroke-width="1.6"/>'
            )
        color = NONFINITE[0] if link.nonfinite else GRADIENT_COLOR
        above = self._link_width(link.norm, link.nonfinite) / 2
        if x0 != x1:  # a link with a bend has constant width
            path = f"M{x0:.1f} {y0:.1f}C{x0:.1f} {bend:.1f} {x1:.1f} {bend:.1f} {x1:.1f} {y1:.1f}"
            over = f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{2 * above:.1f}"/>'
            if abs(x1 - x0) < 1.5 * self.pitch:
                return over
            rim = f'stroke="{COLORS["background"][0]}" stroke-width="{2 * above + 2:.1f}"'
            return (
                # A rim in the background color separates the link from links that it crosses.
                f'<path d="{path}" fill="none" {rim}/>{over}'
            )
        below = self._link_width(after, link.nonfinite) / 2
        one, two, three, four = x0 - above, x1 - below, x1 + below, x0 + above
        path = f"M{one:.1f} {y0:.1f}C{one:.1f} {bend:.1f} {two:.1f} {bend:.1f} {two:.1f} {y1:.1f}"
        path += f"H{three:.1f}C{three:.1f} {bend:.1f} {four:.1f} {bend:.1f} {four:.1f} {y0:.1f}z"
        return f'<path d="{path}" fill="{color}"/>'

    def _link_width(self, norm: float | None, nonfinite: bool = False) -> float:
        return self.slim * (MAX_WIDTH / 2 if nonfinite else self.scale(norm or 0.0))

    def _row(self, number: int, row: _Row) -> Iterator[str]:
        left, y = self.at[number]
        x = self._x(number, self.row_lanes[number])
        text = left + self.text
        max_width = self.width - self.text - 14
        if row.title:
            line = COLORS["cluster_line"][0]
            over = f"M{left + LEFT_MARGIN:.1f} {y:.1f}H{left + self.width - LEFT_MARGIN:.1f}"
            yield f'<path d="{over}" stroke="{line}" fill="none"/>'
            yield svg_text(text, y + 15, fit_text(row.title, max_width, 12), "muted")
        elif row.cut is not None:
            yield from cut_mark(x, y, row.cut, text, max_width)
        elif row.place is not None:
            yield from self._flow_node(x, y, row.place, text, max_width)

    def _flow_node(
        self, x: float, y: float, place: FlowNode, text: float, max_width: float
    ) -> Iterator[str]:
        width = self._link_width(place.norm)
        if not place.name:
            edge = COLORS["operation_line"][0]
            yield (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" fill="{COLORS["background"][0]}" '
                f'stroke="{edge}"/>'
            )
            said = " ".join(filter(None, (place.kind, _times_text(place))))
            yield svg_text(text, y + 4, fit_text(said, max_width, 10), "muted", size=10)
            return
        two = bool(place.parameters)
        says = f"{place.name}: {_norm_text(place)}"
        yield f"<g><title>{svg_escape(says)}</title>"
        yield leader(
            x + max(width, 12) / 2 + 3,
            text - 6 - (_NORM_WIDTH - 8 if place.norm and place.times == 1 else 0),
            y,
        )
        yield f"{node_mark(x, y, max(width, 12.0), place)}</g>"
        line = y - 3 if two else y + 4
        times = _times_text(place)
        behind = text_width(times, 11) + _GAP if times else 0.0
        said = fit_text(
            place.name, max(max_width - behind, _MIN_NAME_WIDTH), 12, bold=True, end=True
        )
        yield bold_text(text, line, said, _name_color(place), 12)
        at = text + text_width(said, 12, bold=True) + _GAP
        if times:
            yield svg_text(at, line, times, "ink", size=11)
            at += behind
        rest = text + max_width - at
        if rest > _MIN_KIND_WIDTH and place.kind not in ("", place.name):
            yield svg_text(at, line, fit_text(place.kind, rest, 11), "muted", size=11)
        if place.norm and place.times == 1:
            yield svg_text(text - 10, y + 4, number_text(place.norm), "muted", "end", 10)
        if two:
            yield from parameter_marks(text, y + 12, place.parameters, max_width)


def _rows(diagram: FlowDiagram) -> tuple[list[_Row], dict[tuple[int, int], FlowLink]]:
    """Return the rows of a diagram, and (row, row) -> link.

    The row of a cut is just before the row of the node that used the detached tensor.
    """
    before: dict[int, list[FlowCut]] = {}
    for cut in diagram.cuts:
        at = cut.target if cut.target is not None else (cut.source or 0) + 1
        before.setdefault(at, []).append(cut)
    rows: list[_Row] = []
    place: dict[int, int] = {}
    cuts: list[tuple[int, FlowCut]] = []
    segment = ""
    for number, each in enumerate(diagram.nodes):
        if each.segment and each.segment != segment:
            rows.append(_Row(None, None, each.segment, _TITLE_HEIGHT))
            segment = each.segment
        for cut in before.get(number, ()):
            cuts.append((len(rows), cut))
            rows.append(_Row(None, cut, "", _CUT_HEIGHT))
        place[number] = len(rows)
        high = _NODE_HEIGHT if each.parameters else 30 if each.name else _SMALL_NODE_HEIGHT
        rows.append(_Row(each, None, "", high))
    for cut in before.get(len(diagram.nodes), ()):
        cuts.append((len(rows), cut))
        rows.append(_Row(None, cut, "", _CUT_HEIGHT))
    found = {(place[s.source], place[s.target]): s for s in diagram.links}
    for row, cut in cuts:
        if cut.source is not None:
            found[place[cut.source], row] = FlowLink(0, 0, None)
        if cut.target is not None:
            found[row, place[cut.target]] = FlowLink(0, 0, None)
    return rows, found


def _times_text(place: FlowNode) -> str:
    """Return text such as "x4: 0.0055 to 0.0041", or "" if the node represents one block.

    The text is the number of blocks, and the gradient norms of the first and the last block.
    """
    if place.times == 1:
        return ""
    ends = [number_text(each) for each in (place.norm, place.last_norm) if each]
    span = " to ".join(dict.fromkeys(ends))
    return f"{TIMES}{place.times}" + (f": {span}" if span and place.name else "")


def _norm_text(place: FlowNode) -> str:
    """Return the gradient norm of a node as text."""
    return "no gradient" if place.norm is None else f"gradient norm {number_text(place.norm)}"


def _name_color(place: FlowNode) -> str:
    """Return the color of a node's name."""
    if place.state == "learns_nothing":
        return "transfer_line"
    return "output_line" if place.output else "ink"
