"""Draw trials, which are rehearsals with plans, in an SVG chart of peak memory and sent bytes.

The picture adapts to dark mode, and loads nothing from a network.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.text import shorten
from ..graph.units import bytes_text
from ..render.chart import byte_ticks, svg_line, svg_start, svg_text
from ..render.dot.picture import Picture
from ..render.style import COLORS
from .trials import Trial, best_first, flops_more, unchanged_trial

_WIDTH, _LEAST_HEIGHT = 1000, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 430, 64, 56
_LINE, _NAME = 18, 54  # legend: points per line, characters per name
_DOT = 4


def draw_trials(trials: Sequence[Trial], size: int) -> Picture:
    """Draw a dot for each trial: peak memory on the vertical axis, sent bytes on the horizontal.

    A line marks the memory of a device: trials below the line fit. The legend lists the trials with
    their additional operations. The cheapest trial that fits is first and in bold.

    Args:
        trials: trials of the unchanged script and of plans.
        size: memory of a device in bytes.

    >>> picture = draw_trials([Trial((), 9, 1, 1), Trial(("bf16",), 5, 1, 1)], 8)
    >>> picture.source.count("<circle"), "device 8 B" in picture.source
    (2, True)
    """
    plain = unchanged_trial(trials)
    every = best_first(trials, size)
    top = 1.1 * max(size, *(each.peak_bytes for each in every))
    right = 1.1 * max(1, *(each.wire_bytes for each in every))
    height = max(_LEAST_HEIGHT, _TOP + _BOTTOM + _LINE * len(every))
    low, end = height - _BOTTOM, _WIDTH - _RIGHT

    def x(nbytes: float) -> float:
        return _LEFT + nbytes / right * (end - _LEFT)

    def y(nbytes: float) -> float:
        return low - nbytes / top * (low - _TOP)

    title = f"What fits in {bytes_text(size)}"
    out = [svg_start(_WIDTH, height, title), svg_text(_LEFT, 24, title, size=15)]
    for across in byte_ticks(right):
        out.append(svg_line(x(across), _TOP, x(across), low))
        out.append(svg_text(x(across), low + 18, bytes_text(across), "muted", "middle"))
    for up in byte_ticks(top):
        out.append(svg_line(_LEFT, y(up), end, y(up)))
        out.append(svg_text(_LEFT - 8, y(up) + 4, bytes_text(up), "muted", "end"))
    out.append(svg_text(_LEFT, _TOP - 12, "peak of a rank", "muted"))
    out.append(svg_text(end, low + 38, "bytes on the wire in a step", "muted", "end"))
    out.append(svg_line(_LEFT, y(size), end, y(size), "error"))
    out.append(svg_text(end, y(size) - 5, f"device {bytes_text(size)}", "error", "end"))
    points = [(x(each.wire_bytes), y(each.peak_bytes)) for each in every]
    taken = list(points)
    for number, (each, point) in enumerate(zip(every, points, strict=True), 1):
        fits = each.peak_bytes <= size
        color = COLORS["output_line" if fits else "edge"][0]
        out.append(f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="{_DOT}" fill="{color}"/>')
        out.append(_number_label(number, point, taken))
        line = _TOP + _LINE * (number - 1)
        out.append(svg_text(end + 40, line, str(number), "muted", "end"))
        flops = f" {flops_more(each, plain)} FLOPs" if each.flops != plain.flops else ""
        weight = "bold" if fits and number == 1 else "normal"
        name = svg_text(end + 48, line, shorten(each.name, _NAME) + flops)
        out.append(f'<g font-weight="{weight}">{name}</g>')
    return Picture.of_svg("".join([*out, "</svg>"]))


def _number_label(number: int, point: tuple[float, float], taken: list[tuple[float, float]]) -> str:
    """Return SVG with the number of a point, at the nearest position that is still free.

    Args:
        number: the number to write.
        point: x and y of the point.
        taken: positions of points and numbers. The position of the new number is appended.
    """
    ways = [(1, -1), (1, 1), (-1, -1), (-1, 1), (0, -1.4), (0, 1.4), (1.4, 0), (-1.4, 0)]
    places = [
        (point[0] + away * right, point[1] + away * down)
        for away in range(10, 60, 10)
        for right, down in ways
    ]
    at = next(
        (
            (x, y)
            for x, y in places
            if all(abs(x - other) > 13 or abs(y - line) > 11 for other, line in taken)
        ),
        places[0],
    )
    taken.append(at)
    far = abs(at[0] - point[0]) + abs(at[1] - point[1]) > 24
    link = svg_line(*point, *at) if far else ""
    return link + svg_text(at[0], at[1] + 4, str(number), "ink", "middle", 11)
