"""`rehearse --fit`: what makes a step fit, of what needs no new code, and what each costs.

Each plan is a rehearsal of the whole script, in a process of its own: alone first. Where none fits
alone, those that free most are joined, one after the other, until the step fits.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

from .... import plans
from ....graph.units import bytes_text
from .processes import process


@dataclass(frozen=True)
class _Try:
    plans: tuple[str, ...]
    peak: int
    wire: int
    flops: int

    @property
    def cost(self) -> tuple[int, int, int]:
        """What is computed, then what is sent, then how many things there are to change."""
        return self.flops, self.wire, len(self.plans)


def fit(parsed: argparse.Namespace) -> int:
    """Print a table of the plans; status 1 where none fits."""
    size, rank = parsed.fit, (parsed.rank or [0])[0]
    plain = _tried(parsed, rank, ())
    if plain is None:
        return 2
    tries = [plain]
    if plain.peak > size:
        alone = [_tried(parsed, rank, (name,)) for name, _ in plans()]
        helping = [each for each in alone if each is not None and each.peak < plain.peak]
        tries += helping
        helping.sort(key=lambda each: each.peak)
        for count in range(2, len(helping) + 1):
            if any(each.peak <= size for each in tries):
                break
            joined = _tried(parsed, rank, tuple(p for each in helping[:count] for p in each.plans))
            tries += [joined] if joined is not None else []
    if parsed.format == "json":
        print(json.dumps([_row(each, size) for each in tries]))
    else:
        _table(tries, size)
    return 0 if any(each.peak <= size for each in tries) else 1


def _tried(parsed: argparse.Namespace, rank: int, names: tuple[str, ...]) -> _Try | None:
    code, said = process(parsed, rank, "json", names)
    if code:
        print(f"{' + '.join(names) or 'the script'}: does not run", file=sys.stderr)
        return None
    found = json.loads(said)
    return _Try(names, found["peak_bytes"], found["wire_bytes"], found["flops"])


def _row(each: _Try, size: int) -> dict[str, Any]:
    return {
        "plans": list(each.plans),
        "fits": each.peak <= size,
        "peak_bytes": each.peak,
        "wire_bytes": each.wire,
        "flops": each.flops,
    }


def _table(tries: list[_Try], size: int) -> None:
    plain = tries[0]
    fitting = sorted((each for each in tries if each.peak <= size), key=lambda each: each.cost)
    others = sorted((each for each in tries if each.peak > size), key=lambda each: each.peak)
    rows = [("plan", "peak", "left", "on the wire", "FLOPs")]
    for each in (*fitting, *others):
        more = each.flops / max(1, plain.flops) - 1
        left = size - each.peak
        rows.append(
            (
                " + ".join(each.plans) or "as it is",
                bytes_text(each.peak),
                bytes_text(left) if left >= 0 else f"-{bytes_text(-left)}",
                bytes_text(each.wire),
                f"{more:+.1%}" if each.plans else f"{each.flops:,}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first, *numbers = row
        cells = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]))
    used = {name for each in tries for name in each.plans}
    for name, says in plans():
        if name in used:
            print(f"{name}: {says}")
    if not fitting:
        print(f"None of these fits in {bytes_text(size)}.")
