"""Plans that were tried, as plain values: which fits and costs least, as a table and a picture.

What fits stands first: that with the fewest operations, then that which sends least, then that with
the fewest changes. The others follow, the smallest peak first. A plan with which a step sees less
data (another mesh) is compared as if it took as many steps more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from typing import NamedTuple

from ..graph.text import shortened
from ..graph.units import bytes_text
from ..render.chart import byte_ticks, svg_line, svg_start, svg_text
from ..render.style import COLORS
from .plans import kind_of, ladders, plan_of


class Trial(NamedTuple):
    """A rehearsal of a script with some things changed: plans, or arguments of its own.

    >>> Trial(("fused", "bf16"), peak_bytes=8, wire_bytes=4, flops=2).name
    'fused + bf16'
    """

    changes: tuple[str, ...]
    peak_bytes: int
    wire_bytes: int
    flops: int

    @property
    def name(self) -> str:
        """What was changed."""
        return " + ".join(self.changes) or "as it is"


def try_plans(
    attempt: Callable[[tuple[str, ...]], Trial | None],
    size: int,
    *,
    mesh: Sequence[int] = (),
    others: Sequence[str] = (),
) -> list[Trial]:
    """Rehearse with plans, until the step fits: first as it is, then with each plan alone.

    Where no plan fits alone, those that free most are joined, one after the other. A plan of which
    there can be more, such as micro-batches, is tried with more while that frees memory.

    Args:
        attempt: rehearses with these changes; None where that does not run.
        size: bytes that a device has.
        mesh: sizes of the program's mesh, the innermost last.
        others: changes that `attempt` knows besides `plans()`.

    >>> def attempt(changes):
    ...     return Trial(changes, 9 - 2 * len(changes), 1, 1)
    >>> [each.name for each in try_plans(attempt, 8)][:2]
    ['as it is', 'fused']
    """
    plain = attempt(())
    if plain is None:
        return []
    tries, helping = [plain], list[Trial]()
    if plain.peak_bytes <= size:
        return tries
    for ladder in [*([name] for name in others), *ladders(mesh)]:
        best = plain
        for name in ladder:
            found = attempt((name,))
            if found is None or found.peak_bytes >= best.peak_bytes:
                break
            tries.append(found)
            best = found
            if best.peak_bytes <= size:
                break
        helping += [best] if best is not plain else []
    joined: dict[str, str] = {}  # of each kind of plan, which
    for each in sorted(helping, key=lambda each: each.peak_bytes):
        if any(trial.peak_bytes <= size for trial in tries):
            break
        [name] = each.changes
        if joined.setdefault(kind_of(name), name) == name and len(joined) > 1:
            together = attempt(tuple(joined.values()))
            tries += [together] if together is not None else []
    return tries


def best_first(trials: Sequence[Trial], size: int) -> list[Trial]:
    """Those that fit into so many bytes, the cheapest first; then the others.

    >>> large, small = Trial((), 9, 1, 1), Trial(("bf16",), 5, 1, 1)
    >>> best_first([large, small], 8)[0].name
    'bf16'
    """
    whole = _plain(trials).flops

    def cost(each: Trial) -> tuple[float, float, int]:
        less = max(1.0, whole / max(1, each.flops))  # it sees less data in a step
        return each.flops * less, each.wire_bytes * less, len(each.changes)

    fitting = [each for each in trials if each.peak_bytes <= size]
    others = [each for each in trials if each.peak_bytes > size]
    return [*sorted(fitting, key=cost), *sorted(others, key=lambda each: each.peak_bytes)]


def _plain(trials: Sequence[Trial]) -> Trial:
    return next(each for each in trials if not each.changes)


def trial_table(trials: Sequence[Trial], size: int) -> str:
    """A line for each trial, the script as it is among them, and what each plan has to write.

    >>> print(trial_table([Trial((), 4096, 1024, 1000)], 2048))
    plan         peak      left  on the wire  FLOPs
    as it is  4.0 KiB  -2.0 KiB      1.0 KiB  1,000
    None of these fits in 2.0 KiB.
    """
    plain = _plain(trials)
    rows = [("plan", "peak", "left", "on the wire", "FLOPs")]
    for each in best_first(trials, size):
        left = size - each.peak_bytes
        rows.append(
            (
                each.name,
                bytes_text(each.peak_bytes),
                bytes_text(left) if left >= 0 else f"-{bytes_text(-left)}",
                bytes_text(each.wire_bytes),
                _more(each, plain) if each.changes else f"{each.flops:,}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *numbers in rows:
        cells = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    for name in dict.fromkeys(name for each in trials for name in each.changes):
        with suppress(ValueError):  # the script's own arguments
            lines.append(f"{name}: {plan_of(name).says}")
    if all(each.peak_bytes > size for each in trials):
        lines.append(f"None of these fits in {bytes_text(size)}.")
    return "\n".join(lines)


def _more(trial: Trial, plain: Trial) -> str:
    return f"{trial.flops / max(1, plain.flops) - 1:+.1%}"


_WIDTH, _HEIGHT = 820, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 40, 64, 56
_LINE = 15  # between names
_NAME = 40  # characters


def draw_trials(trials: Sequence[Trial], size: int) -> str:
    """What each plan takes and sends, as SVG: upwards the peak, to the right the bytes on the wire.

    A line is the memory of a device: what lies below it fits. The cheapest that fits is named in
    bold. A name has the operations that it costs beside it.

    Args:
        trials: the script as it is, and with plans.
        size: bytes that a device has.

    >>> picture = draw_trials([Trial((), 9, 1, 1), Trial(("bf16",), 5, 1, 1)], 8)
    >>> picture.count("<circle"), "device 8 B" in picture
    (2, True)
    """
    plain = _plain(trials)
    every = best_first(trials, size)
    top = 1.1 * max(size, *(each.peak_bytes for each in every))
    right = 1.1 * max(1, *(each.wire_bytes for each in every))

    def x(nbytes: float) -> float:
        return _LEFT + nbytes / right * (_WIDTH - _LEFT - _RIGHT)

    def y(nbytes: float) -> float:
        return _HEIGHT - _BOTTOM - nbytes / top * (_HEIGHT - _TOP - _BOTTOM)

    title = f"What fits in {bytes_text(size)}"
    out = [svg_start(_WIDTH, _HEIGHT, title), svg_text(_LEFT, 24, title, size=15)]
    out.append(svg_text(_LEFT, 44, "peak of a rank, by bytes on the wire in a step", "muted"))
    for across in byte_ticks(right):
        out.append(svg_line(x(across), _TOP, x(across), _HEIGHT - _BOTTOM))
        below = _HEIGHT - _BOTTOM + 18
        out.append(svg_text(x(across), below, bytes_text(across), "muted", "middle"))
    for up in byte_ticks(top):
        out.append(svg_line(_LEFT, y(up), _WIDTH - _RIGHT, y(up)))
        out.append(svg_text(_LEFT - 8, y(up) + 4, bytes_text(up), "muted", "end"))
    out.append(svg_line(_LEFT, y(size), _WIDTH - _RIGHT, y(size), "error"))
    said = f"device {bytes_text(size)}"
    out.append(svg_text(_WIDTH - _RIGHT, y(size) - 5, said, "error", "end"))
    names: list[tuple[float, float, float]] = []  # from, to and height of each
    for number, each in enumerate(every):
        fits = each.peak_bytes <= size
        color = COLORS["output_line" if fits else "edge"][0]
        at, height = x(each.wire_bytes), y(each.peak_bytes)
        out.append(f'<circle cx="{at:.1f}" cy="{height:.1f}" r="5" fill="{color}"/>')
        text = shortened(each.name, _NAME)
        text += f" {_more(each, plain)} FLOPs" if each.flops != plain.flops else ""
        out.append(_named(text, at, height, names, bold=fits and not number))
    return "".join([*out, "</svg>"])


def _named(
    text: str, x: float, y: float, names: list[tuple[float, float, float]], *, bold: bool
) -> str:
    """A name beside its point: on the side that has room, and above those that stand there."""
    width = 6.6 * len(text)
    left = x + 10 + width > _WIDTH
    begin = x - 10 - width if left else x + 10
    line = y + 4
    while any(
        begin < end and start < begin + width and abs(line - other) < _LINE
        for start, end, other in names
    ):
        line -= _LINE
    names.append((begin, begin + width, line))
    color, weight = COLORS["ink" if bold else "muted"][0], "bold" if bold else "normal"
    link = ""
    if line < y:
        edge = COLORS["cluster_line"][0]
        beside = x - 8 if left else x + 8
        link = f'<path d="M{x:.1f} {y:.1f}L{beside:.1f} {line - 4:.1f}" stroke="{edge}"/>'
    return (
        f'{link}<text x="{x - 10 if left else x + 10:.1f}" y="{line:.1f}" fill="{color}" '
        f'text-anchor="{"end" if left else "start"}" font-weight="{weight}">{escape(text)}</text>'
    )
