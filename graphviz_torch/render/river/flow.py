"""`draw_flow`: the gradient of a step as a river, from data to loss, as one SVG file.

A sheet has one panel for each step, and a panel one row for each place and each dam, from the data
above to the loss below. The file follows the reader's dark setting and loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from ...graph import GraphLike
from ...graph.text import shortened
from ...graph.units import number_text
from ..chart import svg_escape, svg_start, svg_text
from ..resolve import graph_and_findings
from ..style import COLORS, NONFINITE
from ..svg_picture import SvgPicture
from .lanes import courses
from .river import river_of
from .signs import (
    BROAD,
    SIDE,
    WATER,
    Scale,
    bold,
    dam_sign,
    end_of,
    leader,
    legend,
    place_sign,
    tributaries,
)
from .stream import Dam, Place, River, Stream
from .text_width import text_width

_WIDE, _NARROW = 1200, 700  # of two columns, and of one
_LONG, _COLUMNS = 36, 4  # rows of a column: more go on in the next one
_HEAD, _FOOT = 88, 84
_BEND = 28  # pixels below a column in which streams turn to the next one
_ROW, _SMALL, _DAM, _PART = 40, 20, 34, 34  # heights
_LANES, _PITCH = 230.0, 54.0  # pixels of a column for the streams, and between two
_GAUGE = 54  # pixels for the norm, beside its place
_CHARACTER, _LETTER = 8.4, 6.7  # pixels of one in bold, and of one in small print: upper means


class _Row(NamedTuple):
    """A line of a sheet. It holds one of three: a place, a dam, or the title of a backward."""

    place: Place | None
    dam: Dam | None
    title: str  # of the backward whose places begin below; "" in any other row
    height: float  # pixels


def draw_flow(graph: GraphLike, after: GraphLike | None = None) -> SvgPicture:
    """The gradient of a step as a river: SVG text, from data above to the loss below.

    The width of a stream is the norm of the gradient of the result that it carries, on a
    logarithmic scale; of a result with several users it is that of all of them together. A place is
    a module, at the deepest level that fits a sheet, with what computes behind it in no module. Its
    colour, and that of each parameter beside it, says whether they learn, are frozen, or learn
    nothing: no gradient came, its norm was below 1e-12, or no optimizer has them. The number and
    the width at a module are those of the gradient that arrives at the output of that module. A dam
    is where the way was cut, with how and its line.

    Args:
        graph: a recording, its graph, or a training: then its last step is drawn.
        after: another one to draw beside it, on the same scale: after a repair.

    Raises:
        TypeError, ValueError: as `draw_graph`.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Linear(2, 1)
    >>> with record(model) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> "All 2 parameters learn." in draw_flow(recording)
    True
    """
    given = [graph] if after is None else [graph, after]
    rivers = [river_of(*graph_and_findings(each)) for each in given]
    scale = Scale([norm for river in rivers for norm in _norms(river)])
    panels = [_Panel(river, scale) for river in rivers]
    if len(panels) > 1:
        width = _WIDE
        for panel in panels:
            panel.fit(_WIDE / 2, 1)
        slim = min(panel.slim for panel in panels)
        for panel in panels:  # one scale for all
            panel.slim = slim
    else:
        columns = max(1, min(_COLUMNS, ceil(len(panels[0].rows) / _LONG)))
        width = _WIDE if columns > 1 else _NARROW
        panels[0].fit(width, columns)
    bend = _BEND if any(any(panel.column) for panel in panels) else 0
    height = max(panel.height for panel in panels) + bend + _FOOT
    out = [svg_start(width, round(height), " / ".join(river.sentence for river in rivers))]
    for number, panel in enumerate(panels):
        left = number * _WIDE / 2
        out += panel.written(left, ("before", "after")[number] if len(panels) > 1 else "")
    out += legend(scale, panels[0].slim, height)
    return SvgPicture("".join([*out, "</svg>"]))


def _norms(river: River) -> Iterator[float]:
    norms = [place.norm for place in river.places] + [stream.norm for stream in river.streams]
    yield from (norm for norm in norms if norm is not None)


class _Panel:
    """One river: its rows, the lane of each, and once `fit` ran, where each stands on the sheet."""

    def __init__(self, river: River, scale: Scale) -> None:
        self.river, self.scale = river, scale
        self.rows, edges = _rows(river)
        self.row_lanes, self.courses = courses(len(self.rows), edges)
        self.streams = edges
        lanes = [lane for course in self.courses for lane in course.lanes.values()]
        self.lanes = 1 + max([*self.row_lanes, *lanes], default=0)

    def fit(self, width: float, columns: int) -> None:
        """Give each row its place on a sheet."""
        self.width = width / columns
        self.pitch: float = min(_PITCH, _LANES / columns**0.5 / max(1, self.lanes - 1))
        self.slim: float = min(1.0, (self.pitch - 2) / BROAD)  # with many lanes, all are slimmer
        self.text = SIDE + BROAD + self.pitch * (self.lanes - 1) + _GAUGE + 16
        whole = sum(row.height for row in self.rows)
        self.at: list[tuple[float, float]] = []  # left and middle of each row
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

    def written(self, left: float, title: str) -> Iterator[str]:
        """Its SVG: beds, then water, then what stands in and beside it."""
        river = self.river
        yield f'<g transform="translate({left:.0f} 0)">'
        color = "transfer_line" if river.starves else "ink"
        head = f"{title}: {river.sentence}" if title else river.sentence
        size = 15 if title else 18
        room = (self.width * (1 + max(self.column, default=0)) - SIDE) / (size * 0.52)
        yield bold(SIDE, 36, shortened(head, int(room)), color, size)
        about = "Data enters above. The gradient rises from the loss below."
        if river.frozen:
            are = "is" if river.frozen == 1 else "are"
            about += f" {river.frozen:,} more {are} frozen."
        yield svg_text(SIDE, 58, about, "muted")
        ribbons = [
            ribbon
            for course in self.courses
            for ribbon in self._course(course.source, course.lanes, course.uses)
        ]
        yield from (text for bends, text in ribbons if bends)  # below what runs straight
        yield from (text for bends, text in ribbons if not bends)
        for number, row in enumerate(self.rows):
            yield from self._row(number, row)
        yield "</g>"

    def _x(self, row: int, lane: int) -> float:
        return self.at[row][0] + SIDE + BROAD / 2 + self.pitch * lane

    def _course(
        self, source: int, lanes: dict[int, int], uses: Sequence[int]
    ) -> Iterator[tuple[bool, str]]:
        """The ribbons of a result: does it bend, and its SVG."""
        streams = {use: self.streams[source, use] for use in uses}
        last = uses[-1]
        for row, below in pairwise(range(source, last + 1)):
            start = self.row_lanes[row] if row == source else lanes[row]
            ends = [self.row_lanes[below]] if below in streams else []
            if below < last:
                ends.append(lanes[below])
            later = [streams[use] for use in uses if use >= below]
            for i, end in enumerate(ends):
                used = below in streams and not i
                stream = streams[below] if used else later[-1]
                place = self.rows[below].place
                # In a lane of its own, it is as wide where it ends as what it ends in.
                straight = used and start == end and len(ends) == 1
                after = place.norm if straight and place is not None else stream.norm
                ribbons = self._segment(row, start, below, end, stream, after)
                yield from ((start != end, ribbon) for ribbon in ribbons)

    def _segment(
        self, row: int, start: int, below: int, end: int, stream: Stream, after: float | None
    ) -> Iterator[str]:
        x0, y0 = self._x(row, start), self.at[row][1]
        x1, y1 = self._x(below, end), self.at[below][1]
        if self.column[row] != self.column[below]:  # it goes on at the top of the next column
            yield self._ribbon(x0, y0, self._x(row, end), self.height + 4, stream, stream.norm)
            yield self._ribbon(self._x(below, start), _HEAD - 12, x1, y1, stream, after)
            return
        yield self._ribbon(x0, y0, x1, y1, stream, after)
        if start == end and stream.norm and self._wide(stream.norm) > 12 and y1 - y0 > 24:
            y = (y0 + y1) / 2 + 2  # which way the gradient goes
            yield (
                f'<path d="M{x0 - 4:.1f} {y:.1f}l4 -4l4 4" fill="none" '
                f'stroke="{COLORS["background"][0]}" stroke-width="1.6"/>'
            )

    def _ribbon(
        self, x0: float, y0: float, x1: float, y1: float, stream: Stream, after: float | None
    ) -> str:
        """A stream between two rows; `after` is the norm where it ends."""
        bend = (y0 + y1) / 2
        if not (stream.norm or stream.nonfinite):  # dry
            path = f"M{x0:.1f} {y0:.1f}C{x0:.1f} {bend:.1f} {x1:.1f} {bend:.1f} {x1:.1f} {y1:.1f}"
            line = COLORS["edge"][0]
            return (
                f'<path d="{path}" fill="none" stroke="{line}" stroke-dasharray="2 4" '
                'stroke-width="1.6"/>'
            )
        color = NONFINITE[0] if stream.nonfinite else WATER
        above = self._wide(stream.norm, stream.nonfinite) / 2
        if x0 != x1:  # as wide where it bends
            path = f"M{x0:.1f} {y0:.1f}C{x0:.1f} {bend:.1f} {x1:.1f} {bend:.1f} {x1:.1f} {y1:.1f}"
            over = f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{2 * above:.1f}"/>'
            if abs(x1 - x0) < 1.5 * self.pitch:
                return over
            rim = f'stroke="{COLORS["background"][0]}" stroke-width="{2 * above + 2:.1f}"'
            return f'<path d="{path}" fill="none" {rim}/>{over}'  # it crosses others
        below = self._wide(after, stream.nonfinite) / 2
        one, two, three, four = x0 - above, x1 - below, x1 + below, x0 + above
        path = f"M{one:.1f} {y0:.1f}C{one:.1f} {bend:.1f} {two:.1f} {bend:.1f} {two:.1f} {y1:.1f}"
        path += f"H{three:.1f}C{three:.1f} {bend:.1f} {four:.1f} {bend:.1f} {four:.1f} {y0:.1f}z"
        return f'<path d="{path}" fill="{color}"/>'

    def _wide(self, norm: float | None, nonfinite: bool = False) -> float:
        return self.slim * (BROAD / 2 if nonfinite else self.scale(norm or 0.0))

    def _row(self, number: int, row: _Row) -> Iterator[str]:
        left, y = self.at[number]
        x = self._x(number, self.row_lanes[number])
        text = left + self.text
        room = int((self.width - self.text - 14) / _CHARACTER)
        if row.title:
            line = COLORS["cluster_line"][0]
            over = f"M{left + SIDE:.1f} {y:.1f}H{left + self.width - SIDE:.1f}"
            yield f'<path d="{over}" stroke="{line}" fill="none"/>'
            yield svg_text(text, y + 15, shortened(row.title, room), "muted")
        elif row.dam is not None:
            yield from dam_sign(x, y, row.dam, text, room)
        elif row.place is not None:
            yield from self._place(x, y, row.place, text, room)

    def _place(self, x: float, y: float, place: Place, text: float, room: int) -> Iterator[str]:
        width = self._wide(place.norm)
        if not place.name:
            edge = COLORS["operation_line"][0]
            yield (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" fill="{COLORS["background"][0]}" '
                f'stroke="{edge}"/>'
            )
            yield svg_text(text, y + 4, place.kind, "muted", size=10)
            return
        two = bool(place.tributaries)
        says = f"{place.name}: {_said(place)}"
        yield f"<g><title>{svg_escape(says)}</title>"
        yield leader(x + max(width, 12) / 2 + 3, text - 6 - (_GAUGE - 8 if place.norm else 0), y)
        yield f"{place_sign(x, y, max(width, 12.0), place)}</g>"
        said = end_of(place.name, max(12, room - 6))
        line = y - 3 if two else y + 4
        yield bold(text, line, said, _named(place), 12)
        at = text + text_width(said, 12, bold=True) + 10
        rest = int((self.width - self.text - (at - text) - 10) / _LETTER)
        if rest > 6 and place.kind not in ("", place.name):
            yield svg_text(at, line, shortened(place.kind, rest), "muted", size=11)
        if place.norm:
            yield svg_text(text - 10, y + 4, number_text(place.norm), "muted", "end", 10)
        if two:
            yield from tributaries(text, y + 12, place.tributaries, self.width - self.text - 16)


def _rows(river: River) -> tuple[list[_Row], dict[tuple[int, int], Stream]]:
    """The rows of a river: places, with dams before what they keep dry.

    Beside them the streams, by the numbers of the two rows that each one joins.
    """
    before: dict[int, list[Dam]] = {}
    for dam in river.dams:
        at = dam.target if dam.target is not None else (dam.source or 0) + 1
        before.setdefault(at, []).append(dam)
    rows: list[_Row] = []
    place: dict[int, int] = {}
    dams: list[tuple[int, Dam]] = []
    part = ""
    for number, each in enumerate(river.places):
        if each.part and each.part != part:
            rows.append(_Row(None, None, each.part, _PART))
            part = each.part
        for dam in before.get(number, ()):
            dams.append((len(rows), dam))
            rows.append(_Row(None, dam, "", _DAM))
        place[number] = len(rows)
        high = _ROW if each.tributaries else 30 if each.name else _SMALL
        rows.append(_Row(each, None, "", high))
    for dam in before.get(len(river.places), ()):
        dams.append((len(rows), dam))
        rows.append(_Row(None, dam, "", _DAM))
    found = {(place[s.source], place[s.target]): s for s in river.streams}
    for row, dam in dams:
        if dam.source is not None:
            found[place[dam.source], row] = Stream(0, 0, None)
        if dam.target is not None:
            found[row, place[dam.target]] = Stream(0, 0, None)
    return rows, found


def _said(place: Place) -> str:
    """The norm of its gradient in words."""
    return "no gradient" if place.norm is None else f"gradient norm {number_text(place.norm)}"


def _named(place: Place) -> str:
    """The colour of its name."""
    if place.state == "starves":
        return "transfer_line"
    return "output_line" if place.output else "ink"
