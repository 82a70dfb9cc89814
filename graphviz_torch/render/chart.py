"""Draw line charts with logarithmic axes as SVG, such as time over size.

Lines differ in color, dash and marker. The name of each line is at its end. The SVG follows the
reader's dark mode and loads no other file.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from .labels import clip
from .style import COLORS, dark_rules, palette

if TYPE_CHECKING:
    from .dot.picture import Picture

_LINES = ("operation_line", "input_line", "transfer_line", "output_line", "parameter_line")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4")
_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 150, 40, 52

Point = tuple[float, float]


def line_chart(
    lines: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x: str,
    y: str,
    x_text: Callable[[float], str] = str,
    y_text: Callable[[float], str] = str,
) -> Picture:
    """Return a chart of lines with logarithmic axes.

    A point with a coordinate of 0 or less is left out.

    Args:
        lines: name -> points.
        title: the title above the chart.
        x, y: names of the axes, with the unit.
        x_text, y_text: functions that format a number on the axis.

    >>> chart = line_chart({"cpu": [(1, 2.0), (10, 9.0)]}, title="a < b", x="n", y="s")
    >>> chart.source.count("<circle"), "a &lt; b" in chart.source
    (2, True)
    """
    # `Picture` is imported here, because the interactive view uses this module without it.
    from .dot.picture import Picture

    drawn = {n: [p for p in points if min(p) > 0] for n, points in lines.items()}
    every = [point for points in drawn.values() for point in points]
    out = [
        svg_start(_WIDTH, _HEIGHT, title),
        svg_text(_LEFT, 24, title, size=15),
    ]
    if not every:
        out.append(svg_text(_LEFT, _HEIGHT / 2, "nothing was measured", "muted"))
        return Picture.of_svg("".join([*out, "</svg>"]))
    across = _Axis([p[0] for p in every], _LEFT, _WIDTH - _RIGHT)
    up = _Axis([p[1] for p in every], _HEIGHT - _BOTTOM, _TOP)
    for value in across.ticks():
        at = across(value)
        out.append(svg_line(at, _TOP, at, _HEIGHT - _BOTTOM))
        out.append(svg_text(at, _HEIGHT - _BOTTOM + 18, x_text(value), "muted", "middle"))
    for value in up.ticks():
        at = up(value)
        out.append(svg_line(_LEFT, at, _WIDTH - _RIGHT, at))
        out.append(svg_text(_LEFT - 8, at + 4, y_text(value), "muted", "end"))
    out.append(svg_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, x, "ink", "middle"))
    out.append(svg_text(_LEFT - 60, _TOP - 8, y, "ink"))
    ends: list[float] = []
    for i, (name, points) in enumerate(drawn.items()):
        if not points:
            continue
        color = COLORS[_LINES[i % len(_LINES)]][0]
        dash = f' stroke-dasharray="{_DASHES[i % 5]}"' if i % 5 else ""
        at_all = [(across(a), up(b)) for a, b in points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at_all)
        out.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>'
        )
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{color}"/>' for a, b in at_all]
        end = at_all[-1][1] + 4
        while any(abs(end - other) < 15 for other in ends):
            end += 15
        ends.append(end)
        out.append(f'<text x="{at_all[-1][0] + 10:.1f}" y="{end:.1f}" fill="{color}">')
        out.append(f"{svg_escape(name)}</text>")
    return Picture.of_svg("".join([*out, "</svg>"]))


class _Axis:
    """A logarithmic axis, which maps values to positions in the picture."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = math.log10(min(values)), math.log10(max(values))
        room = max(high - low, 0.5) * 0.06
        self.low, self.high = low - room, high + room
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the values of the ticks: powers of ten or, on a short axis, 1, 2, 5, 10, ..."""
        span = self.high - self.low
        steps = (1,) if span > 3 else (1, 2, 5)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        values = [step * 10.0**power for power in powers for step in steps]
        inside = [v for v in values if self.low <= math.log10(v) <= self.high]
        return inside[:: max(1, math.ceil(len(inside) / 8))]


def byte_ticks(most: float) -> list[float]:
    """Return ticks in bytes for an axis from 0 to `most`: three to six values in equal steps.

    >>> byte_ticks(424 * 2**20) == [128 * 2**20 * i for i in range(4)]
    True
    """
    step = 2.0 ** math.ceil(math.log2(max(most, 1.0) / 5))
    return [step * i for i in range(math.floor(most / step) + 1)]


def svg_escape(text: str) -> str:
    r"""Escape a text for an element or an attribute of an SVG.

    >>> svg_escape("a < b\x1b")
    'a &lt; b␛'
    """
    return html.escape(clip(text))


def svg_start(width: float, height: float, title: str) -> str:
    """Return the start of an SVG text: opening tag, style for dark mode, title and background."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" height="{height}" font-family="Helvetica,Arial,sans-serif" '
        f'font-size="12"><style>{dark_rules()}</style><title>{svg_escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="{palette("auto")["background"]}"/>'
    )


def svg_text(
    x: float, y: float, text: str, color: str = "ink", anchor: str = "start", size: int = 12
) -> str:
    """Return the SVG of a line of text; `color` is a name in `COLORS`."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{COLORS[color][0]}" text-anchor="{anchor}" '
        f'font-size="{size}">{svg_escape(text)}</text>'
    )


def svg_line(x1: float, y1: float, x2: float, y2: float, color: str = "cluster_line") -> str:
    """Return the SVG of a straight line; `color` is a name in `COLORS`."""
    line = COLORS[color][0]
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{line}" fill="none"/>'
