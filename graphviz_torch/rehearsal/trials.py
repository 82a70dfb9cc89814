"""Sort trials, which are rehearsals with plans, by fit and cost, and print them as a table.

Trials that fit are first, sorted by cost. Trials that do not fit follow, sorted by peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from ..graph.shown_text import Text
from ..graph.units import bytes_text, operations_text
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
