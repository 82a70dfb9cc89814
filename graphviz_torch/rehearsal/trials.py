"""Find plans with which a step fits into memory, and show the trials as a table or a chart.

The search tries single plans, then cheap combinations. A trial is a rehearsal with plans. Trials
that fit are first, sorted by cost. Trials that do not fit follow, sorted by peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import combinations, product
from math import prod

from ..graph.immutable import NamedTuple
from ..graph.text import Text, shorten
from ..graph.units import bytes_text, operations_text
from ..render.chart import byte_ticks, svg_line, svg_start, svg_text
from ..render.dot.picture import Picture
from ..render.style import COLORS
from .configurations import kind_of, ladders, plan_of


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


# A function that rehearses the script with some changes. It returns None if the script fails.
Attempt = Callable[[tuple[str, ...]], Trial | None]

_MAX_COMBINED = 5  # largest number of plans in a combination, except for all plans together
_ENOUGH_FITTING = 3  # number of fitting combinations after which the search ends
_MAX_TRIES = 8  # number of combinations to try
# The next plan of a ladder is tried if the peak is at most this fraction of the previous peak.
_MIN_REDUCTION = 0.99


def try_plans(
    attempt: Attempt,
    size: int,
    *,
    mesh: Sequence[int] = (),
    others: Sequence[str] = (),
) -> list[Trial]:
    """Rehearse the unchanged script, each plan alone, and some combinations of plans.

    If the unchanged script fits, nothing else is tried. For a plan with a number, such as
    micro-batches, the number is increased until the step fits, or until no more memory is freed.

    The memory of a combination is predicted from the trials of its single plans. Combinations that
    are predicted to fit are rehearsed, the cheapest first, until three of them fit. If none fits,
    all plans are combined.

    Args:
        attempt: rehearses the script with some changes, given by their names. Returns None if the
            script fails.
        size: memory of a device in bytes.
        mesh: sizes of the script's mesh, innermost last.
        others: names of changes that `attempt` can make, in addition to `plans()`.

    Returns:
        The trials, in the order of execution. The list is empty if the unchanged script fails.

    >>> def attempt(changes):
    ...     return Trial(changes, 90 - 20 * len(changes), 1, 1)
    >>> [each.name for each in try_plans(attempt, 80)][:2]
    ['as it is', 'fused']
    """
    plain = attempt(())
    if plain is None or plain.peak_bytes <= size:
        return [] if plain is None else [plain]
    alone = [
        each
        for ladder in [*([name] for name in others), *ladders(mesh)]
        for each in _trials_of_ladder(attempt, ladder, plain, size)
    ]
    return [plain, *alone, *dict.fromkeys(_combinations(cache(attempt), alone, plain, size))]


def _trials_of_ladder(
    attempt: Attempt, ladder: list[str], plain: Trial, size: int
) -> Iterator[Trial]:
    """Try the plans of a ladder until one fits or saves no more memory; yield the trials.

    Args:
        attempt: rehearses the script with some changes.
        ladder: plans, each of which should save more memory than the previous one.
        plain: the trial of the unchanged script.
        size: memory of a device in bytes.
    """
    best = plain
    for name in ladder:
        found = attempt((name,))
        if found is None or found.peak_bytes > _MIN_REDUCTION * best.peak_bytes:
            return
        yield found
        best = found
        if best.peak_bytes <= size:
            return


def _combinations(
    attempt: Attempt,
    alone: Sequence[Trial],
    plain: Trial,
    size: int,
) -> list[Trial]:
    fitting = [set(each.changes) for each in alone if each.peak_bytes <= size]
    found, tried, enough = list[Trial](), 0, len(fitting) + _ENOUGH_FITTING
    missed = 1.0  # largest ratio of a rehearsed peak to the predicted peak
    for foretold in sorted(_predictions(alone, plain), key=lambda each: cost(each, plain)):
        if tried == _MAX_TRIES or len(fitting) == enough:
            break
        changes = set(foretold.changes)
        if foretold.peak_bytes * missed > size or any(less < changes for less in fitting):
            continue  # will not fit, or fewer of its plans fit already
        trial = attempt(foretold.changes)
        tried += 1
        if trial is not None:
            found.append(trial)
            missed = max(missed, trial.peak_bytes / max(1, foretold.peak_bytes))
            fitting += [changes] if trial.peak_bytes <= size else []
    return found if fitting else [*found, *_combine_all(attempt, alone, plain, size)]


def _combine_all(
    attempt: Attempt,
    alone: Sequence[Trial],
    plain: Trial,
    size: int,
) -> list[Trial]:
    """Combine the plan of each kind that saves most, then drop plans that are not needed to fit.

    Args:
        attempt: rehearses the script with some changes.
        alone: the trials of single plans.
        plain: the trial of the unchanged script.
        size: memory of a device in bytes.

    Returns:
        The trials, in the order of execution.
    """
    kinds = _by_kind(alone)
    names = {kind: trials[-1].name for kind, trials in kinds}
    joined = attempt(tuple(names.values())) if len(names) > 1 else None
    found = [] if joined is None else [joined]
    if joined is None or joined.peak_bytes > size:
        return found
    for kind, trials in sorted(kinds, key=lambda row: cost(row[1][-1], plain), reverse=True):
        for less in ["", *(each.name for each in trials[:-1])]:
            fewer = tuple(name for name in {**names, kind: less}.values() if name)
            trial = attempt(fewer) if len(fewer) > 1 else None
            found += [] if trial is None else [trial]
            if trial is not None and trial.peak_bytes <= size:
                names[kind] = less
                break
    return found


def _predictions(alone: Sequence[Trial], plain: Trial) -> Iterator[Trial]:
    """Yield predicted trials for combinations of plans, at most one of each kind.

    The prediction assumes that a plan scales the memory of each role by the same factor in a
    combination as alone.
    """
    for count in range(2, _MAX_COMBINED + 1):
        for some in combinations(_by_kind(alone), count):
            for trials in product(*(trials for _, trials in some)):
                rows = [dict(each.at_peak) or {"": each.peak_bytes} for each in (plain, *trials)]
                roles = {role for row in rows for role in row}
                yield Trial(
                    tuple(name for each in trials for name in each.changes),
                    sum(_predict([row.get(role, 0) for row in rows]) for role in roles),
                    _predict([each.wire_bytes for each in (plain, *trials)]),
                    _predict([each.flops for each in (plain, *trials)]),
                )


def _predict(numbers: Sequence[int]) -> int:
    """Predict a number, such as a size in bytes, for a combination of plans.

    Args:
        numbers: the number without plans, followed by the number with each plan alone.
    """
    before, *after = numbers
    return round(before * prod(each / before for each in after)) if before else max(after)


def _by_kind(alone: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    """Group the trials by the kinds of their plans. The kind that saves most memory is first."""
    kinds: dict[str, list[Trial]] = {}
    for each in alone:
        kinds.setdefault(kind_of(each.name), []).append(each)
    return sorted(kinds.items(), key=lambda row: row[1][-1].peak_bytes)
