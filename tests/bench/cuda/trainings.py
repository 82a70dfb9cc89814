"""Check that recording changes nothing in trainings on a GPU, and compare their findings.

    python -m tests.bench.cuda.trainings             all, six at a time
    python -m tests.bench.cuda.trainings NAME ...    these, with all findings
    python -m tests.bench.cuda.trainings --report    with the complete findings

Each training of `loops/`, `libraries/` and `mistakes/` runs four times, each time in a process of
its own: bare twice, in `graphviz-torch run`, and in `run --experiment --steps 0`. A training prints
a hash of its losses and weights ("BITS ..."). If the two bare hashes are equal, the other two have
to be equal to them. The first line of a training has the expected findings; others may only be
notes. Without a GPU, the trainings run on the CPU, which checks less. A training whose library is
not installed is listed as not run. The exit status is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
WAYS = (
    [],
    [],
    ["-m", "graphviz_torch", "run", "--out", "OUT"],
    ["-m", "graphviz_torch", "run", "--experiment", "--steps", "0", "--out", "OUT"],
)


class Ran(NamedTuple):
    """The output of one process."""

    bits: str | None
    report: dict[str, Any]
    error: str
    seconds: float


def ran(script: Path, way: list[str]) -> Ran:
    """Run `script` in one of `WAYS`."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        given = filter(None, [os.environ.get("PYTHONPATH")])
        environment = os.environ | {
            "PORT": str(free.getsockname()[1]),
            "PYTHONPATH": os.pathsep.join((str(FOLDER), str(FOLDER.parents[2]), *given)),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "OMP_NUM_THREADS": "2",
        }
        report = Path(folder) / "report.sarif"
        free.close()
        options = [str(report) if word == "OUT" else word for word in way]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, *options, str(script)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ran(None, {}, "not done in 300 s", 300.0)
        bits = re.search(r"^BITS (\w+)$", done.stdout, re.MULTILINE)
        return Ran(
            bits[1] if bits else None,
            json.loads(report.read_text()) if report.exists() else {},
            done.stderr,
            time.monotonic() - began,
        )


def found(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the findings of a report: level, rule and message."""
    results = report["runs"][0]["results"] if report else []
    return [(one["level"], one["ruleId"], one["message"]["text"]) for one in results]


def expected(script: Path) -> set[str]:
    first = script.read_text().splitlines()[0]
    words = first.removeprefix('"""expects: ').split(".")[0]
    return set() if words == "nothing" else set(words.split(", "))


class Told(NamedTuple):
    """The checks of a training."""

    lines: str
    ran: bool = False
    compared: bool = False  # whether the bits were compared
    right: bool = False


def told(script: Path, whole: bool) -> Told:
    """Run a training in all ways, and check the results."""
    bare, again, recorded, experiment = (ran(script, way) for way in WAYS)
    name = f"{script.parent.name}/{script.stem}"
    if bare.bits is None:
        absent = re.search(r"No module named '\w+'", bare.error)
        return Told(f"{name}: not run: " + (absent[0] if absent else bare.error[-600:]))
    lines, right, compared = [], True, bare.bits == again.bits
    if not compared:
        lines.append("  two bare runs differ: bits are not compared")
    for label, other in (("run", recorded), ("experiment", experiment)):
        if other.bits is None or (compared and other.bits != bare.bits):
            right = False
            lines.append(f"  DIFFERS by {label}: {bare.bits} {other.bits} {other.error[-1500:]}")
        if not other.report:
            right = False
            lines.append(f"  no report by {label}: {other.error[-800:]}")
        findings, wanted = found(other.report), expected(script)
        loud = {rule for level, rule, _ in findings if level != "note" or rule in wanted}
        if loud != wanted:
            right = False
            lines.append(f"  FOUND by {label}: {sorted(loud)}, expected {sorted(wanted)}")
        for level, rule, message in findings:
            if whole or (level != "note" and rule not in wanted):
                lines.append(f"    {level} {rule}: {message}")
            elif label == "run" and level == "note":
                lines.append(f"    note {rule}: {message.splitlines()[0][:150]}")
    times = ", ".join(f"{one.seconds:.0f}" for one in (bare, again, recorded, experiment))
    head = f"{name}: {'as it should be' if right else 'WRONG'} ({bare.bits}; {times} s)"
    return Told("\n".join([head, *lines]), True, compared, right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="the trainings to run")
    parser.add_argument("--report", action="store_true", help="print complete findings")
    parser.add_argument(
        "--jobs", type=int, default=6, help="number of trainings to run at the same time"
    )
    chosen = parser.parse_args()
    scripts = sorted(FOLDER.glob("*/*.py"))
    if chosen.names:
        scripts = [one for one in scripts if one.stem in chosen.names]
    rows = []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for row in pool.map(lambda one: told(one, chosen.report), scripts):
            rows.append(row)
            print(row.lines, flush=True)
    count, right = sum(row.ran for row in rows), sum(row.right for row in rows)
    print(
        f"{right} of {count} as they should be, the bits of {sum(row.compared for row in rows)} "
        f"compared, {len(rows) - count} not run"
    )
    sys.exit(right < count)


if __name__ == "__main__":
    main()
