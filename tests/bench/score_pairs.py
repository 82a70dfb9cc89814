"""Measure how many of a folder's faulty programs `graphviz-torch run` names.

    python -m tests.bench.score_pairs FOLDER            each pair's score, and the total
    python -m tests.bench.score_pairs FOLDER NAME ...   these pairs, with all findings

The folder has NAME_bug.py and NAME_fixed.py for each pair, and expected.json: by name, the expected
text `what` of a finding (a regular expression), the `lines` that it may name, the `flags` of run,
and the number of `ranks`. A pair scores 1 if one of the first two findings has the text and a line,
and 0.5 if one has only one of them. A warning or error about a repaired program is a false alarm.

tests/bench/reports is such a folder: 146 public reports, which were written down before any rule
was tried on them. When they were first scored, 8.5 of the first thirty were named without a false
alarm, 10 of the second with two, 11.5 of the third without one, 10 of the fourth with three, and 8
of the last 26 with one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

Result = dict[str, Any]  # a result in SARIF


def findings(script: Path, flags: list[str], ranks: int) -> list[Result]:
    """Return the results of the report about a script, worst first."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.sarif"
        run = ["-m", "graphviz_torch", "run", *flags, "-o", str(report), str(script)]
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [sys.executable, *(["-m", *launcher] if ranks > 1 else []), *run]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, capture_output=True, timeout=300, env=environment, check=False)
        return list(json.loads(report.read_text())["runs"][0]["results"]) if report.exists() else []


def line(result: Result) -> int:
    """Return the line of a result; 0 if it has none."""
    for place in result.get("locations", ()):
        return int(place["physicalLocation"]["region"]["startLine"])
    return 0


def score(results: list[Result], script: Path, what: str, lines: list[int]) -> float:
    """Return 1 if one of the first two results names cause and line, 0.5 for only one of them."""
    best = 0.0
    for result in results[:2]:
        text = result["message"]["text"]
        named = {line(result), *map(int, re.findall(rf"{re.escape(script.name)}:(\d+)", text))}
        says = re.search(what, f"{result['ruleId']} {text}", re.IGNORECASE) is not None
        best = max(best, (says + (not named.isdisjoint(lines))) / 2)
    return best


def show(results: list[Result], limit: int) -> None:
    for each in results[:limit]:
        print(f"      {each['level']} {each['ruleId']}:{line(each)} {each['message']['text']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parsed = parser.parse_args()
    rows = json.loads((parsed.folder / "expected.json").read_text())
    pairs = {name: row for name, row in rows.items() if "what" in row}
    total, alarms, chosen = 0.0, 0, parsed.names or list(pairs)
    for name in chosen:
        row = pairs[name]
        bug, fixed = (parsed.folder / f"{name}_{end}.py" for end in ("bug", "fixed"))
        found = findings(bug, row["flags"], row["ranks"])
        points = score(found, bug, row["what"], row["lines"])
        total += points
        loud = [
            each for each in findings(fixed, row["flags"], row["ranks"]) if each["level"] != "note"
        ]
        alarms += bool(loud)
        print(f"{points:4g}  {name}", flush=True)
        show(found, 99 if parsed.names else 2 if points < 1 else 0)
        if loud:
            print("    false alarm about the repaired program:")
            show(loud, 99)
    share = total / len(chosen)
    print(
        f"{total:g} of {len(chosen)} ({share:.0%}); {alarms} false alarms about repaired programs"
    )


if __name__ == "__main__":
    main()
