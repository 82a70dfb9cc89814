"""Draw an SVG chart of a rank's memory over a step: one area for each role, and the peak.

The picture adapts to dark mode, and loads nothing from a network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..graph.units import bytes_text
from ..render.chart import byte_ticks, svg_line, svg_start, svg_text
from ..render.dot.picture import Picture
from ..render.style import COLORS, SCALE
from .blocks import LOOP
from .order import ordinal
from .rehearsal import ROLES, Moment, Rehearsal

# Role -> color, in the order from bottom to top. Long-lived memory is at the bottom.
_FILLS = {
    "parameter": COLORS["parameter_line"],
    "optimizer": COLORS["changed"],
    "gradient": COLORS["output_line"],
    "buffer": COLORS["operation_line"],
    "input": COLORS["edge"],
    "gathered": COLORS["collective_line"],
    "activation": COLORS["input_line"],
    "recomputed": SCALE[3],
    "communication": COLORS["group_line"],
    "temporary": COLORS["transfer_line"],
}
_MIN_VISIBLE = 0.003  # minimum height of an area with a legend, relative to the chart
_WIDTH, _HEIGHT = 860, 440
_MIN_PHASE_WIDTH = 0.12  # minimum width of a phase, relative to the chart
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 236, 64, 60


def draw_memory(rehearsal: Rehearsal) -> Picture:
    """Draw a rank's memory over a step: one area for each role, and the peak with its line of code.

    The horizontal axis is not time, but the order of allocations and frees. If there are too many,
    only some moments are drawn: the ones with the most memory. A short phase is drawn wider.

    >>> import torch
    >>> from graphviz_torch.rehearsal import rehearse
    >>> def train():
    ...     model = torch.nn.Linear(10, 10)
    ...     model(torch.ones(5, 10)).sum().backward()
    >>> draw_memory(rehearse(train)).source.startswith("<svg")
    True
    """
    # The last moment is repeated, because each area ends at the next moment.
    moments = (*rehearsal.moments, *rehearsal.moments[-1:])
    limit = rehearsal.device_memory or 0
    top = max(rehearsal.peak_bytes, 1) * 1.08
    if limit and limit < 2 * top:
        top = max(top, limit * 1.04)
    places = _x_coordinates(moments)

    def x(at: int) -> float:
        return places[at]

    def y(nbytes: float) -> float:
        return _HEIGHT - _BOTTOM - nbytes / top * (_HEIGHT - _TOP - _BOTTOM)

    sizes = [dict(moment.shares) for moment in moments]
    step = f"over its {ordinal(rehearsal.steps)} step"
    title = f"Memory of rank {rehearsal.rank} of {rehearsal.ranks:,} {step}"
    out = [svg_start(_WIDTH, _HEIGHT, title), svg_text(_LEFT, 24, title, size=15)]
    peak = f"Peak {bytes_text(rehearsal.peak_bytes)} in {rehearsal.peak_at}"
    # Shorten a long text in the middle, because its end is the line of code.
    peak = peak if len(peak) < 100 else f"{peak[:58]}…{peak[-40:]}"
    out.append(svg_text(_LEFT, 44, peak, "muted"))
    for value in byte_ticks(top):
        out.append(svg_line(_LEFT, y(value), _WIDTH - _RIGHT, y(value)))
        out.append(svg_text(_LEFT - 8, y(value) + 4, bytes_text(value), "muted", "end"))
    below = [0] * len(sizes)
    at_peak = dict(rehearsal.at_peak)
    rows = []
    for role, (fill, _) in _FILLS.items():
        above = [low + size.get(role, 0) for low, size in zip(below, sizes, strict=True)]
        if above != below:
            points = [f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(above)]
            points += [f"{x(i):.1f},{y(low):.1f}" for i, low in reversed([*enumerate(below)])]
            out.append(f'<polygon points="{" ".join(points)}" fill="{fill}"/>')
            if max(size.get(role, 0) for size in sizes) > _MIN_VISIBLE * top:
                rows.append((role, fill))
        below = above
    if below:
        at = max(range(len(below)), key=below.__getitem__)
        end = y(below[at])
        out.append(
            f'<path d="M{x(at):.1f} {end - 22:.1f}V{end:.1f}" stroke="{COLORS["ink"][0]}" '
            'fill="none"/>'
        )
        text = f"peak {bytes_text(rehearsal.peak_bytes)}"
        out.append(svg_text(x(at) + 5, end - 12, text))
    if limit and limit <= top:
        out.append(svg_line(_LEFT, y(limit), _WIDTH - _RIGHT, y(limit), "error"))
        out.append(svg_text(_LEFT + 6, y(limit) - 5, f"device {bytes_text(limit)}", "error"))
    for i, (role, fill) in enumerate(reversed(rows)):
        line = _TOP + 20 + 20 * i
        out.append(
            f'<rect x="{_WIDTH - _RIGHT + 16}" y="{line - 10}" width="12" height="12" '
            f'fill="{fill}"/>'
        )
        text = f"{ROLES[role]} {bytes_text(at_peak.get(role, 0))}"
        out.append(svg_text(_WIDTH - _RIGHT + 34, line, text))
    out.append(svg_text(_WIDTH - _RIGHT + 16, _TOP, "at the peak", "muted"))
    out += _phases(moments, places)
    axis = "allocations and frees, in order (not in seconds)"
    out.append(svg_text(_LEFT, _HEIGHT - _BOTTOM + 40, axis, "muted"))
    return Picture.of_svg("".join([*out, "</svg>"]))


def _x_coordinates(moments: Sequence[Moment]) -> list[float]:
    """Return the x coordinates of the moments. Each phase is at least `_MIN_PHASE_WIDTH` wide."""
    counts = Counter(moment.phase for moment in moments)
    least = _MIN_PHASE_WIDTH * len(moments)
    wide = {phase: max(count, least if phase != LOOP else 0) for phase, count in counts.items()}
    scale = (_WIDTH - _LEFT - _RIGHT) / max(1.0, sum(wide.values()))
    places, at = [], float(_LEFT)
    for moment in moments:
        places.append(at)
        at += scale * wide[moment.phase] / counts[moment.phase]
    if places:
        places[-1] = float(_WIDTH - _RIGHT)  # the last moment is at the right border
    return places


def _phases(moments: Sequence[Moment], places: Sequence[float]) -> list[str]:
    """Return SVG texts with the names of the phases, each at the start of its phase."""
    out, before, last = [], "", -100.0
    for moment, at in zip(moments, places, strict=True):
        if moment.phase != before and moment.phase != LOOP and at - last > 60:
            out.append(svg_text(at, _HEIGHT - _BOTTOM + 18, moment.phase, "muted"))
            last = at
            if at > _LEFT:
                out.append(svg_line(at, _TOP, at, _HEIGHT - _BOTTOM + 6))
        before = moment.phase if moment.phase != LOOP else before
    return out
