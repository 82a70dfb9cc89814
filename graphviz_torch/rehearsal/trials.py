"""Sort trials, which are rehearsals with plans, by fit and cost; show them as a table or a chart.

Trials that fit are first, sorted by cost. Trials that do not fit follow, sorted by peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from ..graph.text import Text, shorten
from ..graph.units import bytes_text, operations_text
from ..render.chart import byte_ticks, svg_line, svg_start, svg_text
from ..render.dot.picture import Picture
from ..render.style import COLORS
from .configurations import plan_of


class Trial(NamedTuple):
    """The result of a rehearsal of a script with some changes.

    A change is the name of a plan, or a string of arguments for the script. `at_peak` contains the
    bytes at the peak by role of the memory.

    >>> Trial(("fused", "bf16"), peak_bytes=8, wire_bytes=4, flops=2).name
    'fused + bf16'
    """

    changes: tuple[str, ...]
    peak_bytes: int
    wire_bytes: int
    flops: int
    at_peak: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """The names of the changes, joined by " + "."""
        return " + ".join(self.changes) or "as it is"


def cost(trial: Trial, plain: Trial) -> tuple[float, int]:
    """Return the key by which trials are sorted: (cost, number of changes).

    The cost is (operations / operations of the unchanged script) + (sent bytes / sent bytes of the
    unchanged script). It is computed for the same amount of data: if a step of the trial processes
    less data, the cost of more steps is counted.

    Args:
        trial: a trial with changes.
        plain: the trial of the unchanged script.

    >>> cost(Trial(("checkpoint",), 5, wire_bytes=10, flops=8), Trial((), 9, 10, flops=6))
    (2.333..., 1)
    """
    steps = max(1.0, plain.flops / max(1, trial.flops))
    wire = trial.wire_bytes / plain.wire_bytes if plain.wire_bytes else 0.0
    return steps * (trial.flops / max(1, plain.flops) + wire), len(trial.changes)


def best_first(trials: Sequence[Trial], size: int) -> list[Trial]:
    """Sort the trials: first those that fit into `size` bytes, by cost; then the others, by peak.

    >>> large, small = Trial((), 9, 1, 1), Trial(("bf16",), 5, 1, 1)
    >>> best_first([large, small], 8)[0].name
    'bf16'
    """
    plain = unchanged_trial(trials)
    fitting = [each for each in trials if each.peak_bytes <= size]
    others = [each for each in trials if each.peak_bytes > size]
    fitting.sort(key=lambda each: cost(each, plain))
    return [*fitting, *sorted(others, key=lambda each: each.peak_bytes)]


def unchanged_trial(trials: Sequence[Trial]) -> Trial:
    """Return the trial of the unchanged script."""
    return next(each for each in trials if not each.changes)


def trial_table(trials: Sequence[Trial], size: int) -> Text:
    """Return a table with a row for each trial, followed by the code to write for each plan.

    >>> print(trial_table([Trial((), 4096, 1024, 1000)], 2048))
    plan         peak      left  on the wire    FLOPs
    as it is  4.0 KiB  -2.0 KiB      1.0 KiB  1 kFLOP
    None of these fits in 2.0 KiB.
    """
    plain = unchanged_trial(trials)
    rows = [("plan", "peak", "left", "on the wire", "FLOPs")]
    for each in best_first(trials, size):
        left = size - each.peak_bytes
        rows.append(
            (
                each.name,
                bytes_text(each.peak_bytes),
                bytes_text(left) if left >= 0 else f"-{bytes_text(-left)}",
                bytes_text(each.wire_bytes),
                flops_more(each, plain) if each.changes else operations_text(each.flops),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *numbers in rows:
        cells = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    # Name of a plan up to "=" -> full name of the best plan that begins like this.
    names: dict[str, str] = {}
    for each in best_first(trials, size):
        for name in each.changes:
            names.setdefault(name.partition("=")[0], name)
    for name in names.values():
        with suppress(ValueError):  # the change is not a plan, but script arguments
            lines.append(f"{name}: {plan_of(name).advice}")
    if all(each.peak_bytes > size for each in trials):
        lines.append(f"None of these fits in {bytes_text(size)}.")
    return Text("\n".join(lines))


def flops_more(trial: Trial, plain: Trial) -> str:
    """Return the additional operations of a trial in percent of those of the unchanged script.

    >>> flops_more(Trial(("checkpoint",), 5, 10, flops=8), Trial((), 9, 10, flops=6))
    '+33.3%'
    """
    return f"{trial.flops / max(1, plain.flops) - 1:+.1%}"


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
