"""`rehearse --fit`: find plans with which a step fits into memory, and the cost of each plan.

A plan changes arguments that the script passes to PyTorch; the script itself is not edited. For
each plan, a new process rehearses the whole script. The result is printed to stderr as soon as the
process ends.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys

from ....graph.units import bytes_text
from ....rehearsal import Trial, draw_trials, trial_table, try_plans
from ..files import say
from .processes import rehearse_in_process


def fit(parsed: argparse.Namespace) -> int:
    """Try plans, and print and draw their costs.

    Return 0 if a plan fits into memory, 1 if none does, and 2 if the unchanged script does not run.
    """
    if any(path.suffix != ".svg" for path in parsed.out):
        raise ValueError("-o with --fit draws the plans as SVG: pass a name that ends in .svg.")
    files, parsed.out = [path.absolute() for path in parsed.out], []
    size, rank = parsed.fit, (parsed.rank or [0])[0]
    mesh: list[int] = []  # sizes of the script's device mesh, which the first attempt fills in

    def attempt(changes: tuple[str, ...]) -> Trial | None:
        names = [each for each in changes if each not in parsed.other]
        args = [word for each in changes if each in parsed.other for word in shlex.split(each)]
        code, text = rehearse_in_process(parsed, rank, "json", names, args)
        if code:
            why = f": {text}" if changes and text else ""
            say(f"{' + '.join(changes) or 'the script'}: does not run{why}", file=sys.stderr)
            return None
        found = json.loads(text)
        if not changes and found["meshes"]:
            mesh.extend(max(found["meshes"], key=lambda sizes: len(list(sizes))))
        roles = tuple(found["at_peak"].items())
        trial = Trial(changes, found["peak_bytes"], found["wire_bytes"], found["flops"], roles)
        fits = ", fits" if trial.peak_bytes <= size else ""
        say(f"{trial.name}: {bytes_text(trial.peak_bytes)}{fits}", file=sys.stderr)
        return trial

    trials = try_plans(attempt, size, mesh=mesh, others=parsed.other)
    if not trials:
        return 2
    if parsed.format == "json":
        say(json.dumps([_row(each, size) for each in trials]))
    else:
        say(trial_table(trials, size))
    for path in files:
        draw_trials(trials, size).render(outfile=path)
    return 0 if any(each.peak_bytes <= size for each in trials) else 1


def _row(each: Trial, size: int) -> dict[str, object]:
    return {
        "plans": list(each.changes),
        "fits": each.peak_bytes <= size,
        "peak_bytes": each.peak_bytes,
        "wire_bytes": each.wire_bytes,
        "flops": each.flops,
    }
