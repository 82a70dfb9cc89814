"""Measure the speed of each device of this machine, and of the copies between devices.

    python -m tests.bench.bench_devices [seconds per number]

Prints the tables of `compare_devices` for all built-in workloads, the table of `measure_bandwidth`,
and the time of `to_device` compared with a simple loop of `.to` calls.
"""

from __future__ import annotations

import sys

import torch

from graphviz_torch import to_device
from graphviz_torch.devices import compare_devices, measure_bandwidth
from graphviz_torch.devices.compare import WORKS, median_seconds
from graphviz_torch.graph.units import seconds_text


def main(seconds: float) -> None:
    for work in WORKS:
        print(compare_devices(work, seconds=seconds).table(), end="\n\n")
    print(measure_bandwidth(seconds=seconds).table(), end="\n\n")
    target = "cuda" if torch.cuda.is_available() else "cpu"
    tree = {f"x{i}": torch.rand(64, dtype=torch.float64) for i in range(1000)}
    bare = median_seconds(lambda: {k: t.to(target) for k, t in tree.items()}, seconds)
    ours = median_seconds(lambda: to_device(tree, target), seconds)
    print(f"1,000 tensors to {target}: .to in a loop {seconds_text(bare)}, ", end="")
    print(f"to_device {seconds_text(ours)}, {ours / bare:.1f} times as long")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.2)
