"""Measure the time and memory of rehearsing Llama 3 70B, for docs/rehearsal.md.

    python -m tests.rehearsal.bench_rehearse [--layers 80]

Each row is one command in a process of its own: the time of the whole process, and its peak memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from graphviz_torch.graph.units import bytes_text

LLAMA = Path(__file__).parents[2] / "examples" / "rehearsal" / "llama.py"
ROWS = [("FSDP2", 64, 1), ("FSDP2", 1024, 1), ("TP 8 x FSDP2 16", 128, 8)]
HEAD = ["training", "ranks", "seconds", "of CPU", "resident"]
HEAD += ["parameters", "activations", "peak", "TFLOPs"]


def rehearsed(ranks: int, *args: str) -> tuple[dict[str, Any], float, Any]:
    """What the command prints; the seconds that its process took, and what else it used."""
    command = [sys.executable, "-m", "graphviz_torch", "rehearse", f"--ranks={ranks}"]
    command += ["--format=json", str(LLAMA), *args]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        found = json.load(process.stdout)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return found, time.perf_counter() - begun, usage


def main() -> None:
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for name, ranks, tp in ROWS:
        found, seconds, usage = rehearsed(ranks, f"--tp={tp}", *sys.argv[1:])
        sizes = [found[f"{what}_bytes"] for what in ("parameters", "activations", "peak")]
        cells = [name, f"{ranks:,}", f"{seconds:.1f}"]
        cells += [f"{usage.ru_utime + usage.ru_stime:.1f}", bytes_text(usage.ru_maxrss * 1024)]
        cells += [*map(bytes_text, sizes), f"{found['flops'] / 1e12:,.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
