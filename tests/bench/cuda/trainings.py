"""What a recording changes in trainings on a GPU, and what is found in them.

    python -m tests.bench.cuda.trainings             all, six at a time
    python -m tests.bench.cuda.trainings NAME ...    these, with all that is found
    python -m tests.bench.cuda.trainings --report    each finding whole

Each training of `loops/`, `libraries/` and `mistakes/` runs four times, in a process each: bare
twice, by `graphviz-torch run`, and by `run --experiment --steps 0`. A training prints a hash of its
losses and weights ("BITS ..."). Where the two bare ones agree, the others must give the same. Its
first line says which warnings and errors are expected. Without a GPU they run on the CPU, where
this tells less. A training whose library is not installed is named as not run.
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
    """What one process printed."""

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
        done = subprocess.run(
            [sys.executable, *options, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        bits = re.search(r"^BITS (\w+)$", done.stdout, re.MULTILINE)
        return Ran(
            bits[1] if bits else None,
            json.loads(report.read_text()) if report.exists() else {},
            done.stderr,
            time.monotonic() - began,
        )


def found(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Of a report the findings: level, rule, and message."""
    results = report["runs"][0]["results"] if report else []
    return [(one["level"], one["ruleId"], one["message"]["text"]) for one in results]


def expected(script: Path) -> set[str]:
    first = script.read_text().splitlines()[0]
    words = first.removeprefix('"""expects: ').split(".")[0]
    return set() if words == "nothing" else set(words.split(", "))


def told(script: Path, whole: bool) -> tuple[bool, str]:
    """Is the training as it should be, and the lines on it."""
    bare, again, recorded, experiment = (ran(script, way) for way in WAYS)
    name = f"{script.parent.name}/{script.stem}"
    if bare.bits is None:
        absent = re.search(r"No module named '(\w+)'", bare.error)
        return bool(absent), f"{name}: not run: " + (absent[0] if absent else bare.error[-600:])
    lines = []
    if bare.bits != again.bits:
        lines.append("  two bare runs differ: bits are not compared")
    for label, other in (("run", recorded), ("experiment", experiment)):
        if other.bits is None or (bare.bits == again.bits and other.bits != bare.bits):
            lines.append(f"  DIFFERS by {label}: {bare.bits} {other.bits} {other.error[-1500:]}")
        findings = found(other.report)
        loud = {rule for level, rule, _ in findings if level != "note"}
        if loud != expected(script):
            lines.append(f"  FOUND by {label}: {sorted(loud)}, expected {sorted(expected(script))}")
        for level, rule, message in findings:
            if whole or (level != "note" and rule not in expected(script)):
                lines.append(f"    {level} {rule}: {message}")
            elif label == "run" and level == "note":
                lines.append(f"    note {rule}: {message.splitlines()[0][:150]}")
        if not other.report:
            lines.append(f"  no report by {label}: {other.error[-800:]}")
    wrong = any(line.startswith(("  DIFFERS", "  FOUND", "  no report")) for line in lines)
    times = ", ".join(f"{one.seconds:.0f}" for one in (bare, again, recorded, experiment))
    head = f"{name}: {'WRONG' if wrong else 'as it should be'} ({bare.bits}; {times} s)"
    return not wrong, "\n".join([head, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="the trainings to run")
    parser.add_argument("--report", action="store_true", help="each finding whole")
    parser.add_argument("--jobs", type=int, default=6, help="trainings at a time")
    chosen = parser.parse_args()
    scripts = sorted(FOLDER.glob("*/*.py"))
    if chosen.names:
        scripts = [one for one in scripts if one.stem in chosen.names]
    right = 0
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for good, lines in pool.map(lambda one: told(one, chosen.report), scripts):
            right += good
            print(lines, flush=True)
    print(f"{right} of {len(scripts)} as they should be")


if __name__ == "__main__":
    main()
