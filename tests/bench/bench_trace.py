"""Measure tracing, compared with a bare walk and with torchviz.

Run `python -m tests.bench.bench_trace`. Numbers are microseconds of the thread's CPU time for each
node: the median of interleaved rounds, with a new graph for each measurement.

    walk        an iterative depth-first walk over next_functions that keeps nothing
    rows        plain rows with autograd's data, unordered: the least work for a reader
    trace       `trace(y)`, with the nodes and edges of the graph
    whole       `trace(y)` and `to_dot` of every node, as torchviz draws
    dot         `trace(y)` and `to_dot` with its defaults: from 150 nodes on, it folds repeats
    torchviz    `torchviz.make_dot(y)`; it is recursive, and fails beyond about 1,000 nodes

`--wide` uses the models' real widths (10 GB of memory, minutes), `--long` adds chains of 100,000
and 1,000,000 nodes, `--rounds N` sets the number of rounds.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from graphviz_torch import trace
from graphviz_torch.export import to_dot
from tests.support import models

ROOT = Path(__file__).parents[2]

try:
    from torchviz import make_dot
except ImportError:
    make_dot = None


def walk(y: Tensor) -> None:
    """Visit every node once, and keep nothing: a lower bound for the time."""
    seen = set()
    stack = [y.grad_fn]
    while stack:
        fn = stack.pop()
        if fn not in seen:
            seen.add(fn)
            for source, _ in fn.next_functions:
                if source is not None:
                    stack.append(source)


def rows(y: Tensor) -> tuple[list[object], list[object]]:
    """Return unordered rows with the content of a graph, read with the garbage collector paused.

    The rows have the nodes' names, the shape, dtype and device of each output, and the edges.
    """
    gc.disable()
    fns = [y.grad_fn]
    ids = {fns[0]: 0}
    edges: list[object] = []
    for target, fn in enumerate(fns):
        for input_nr, (source, output_nr) in enumerate(fn.next_functions):
            if source is not None:
                place = ids.setdefault(source, len(fns))
                if place == len(fns):
                    fns.append(source)
                edges.append((place, target, output_nr, input_nr))
    known: dict[object, object] = {}
    nodes: list[object] = []
    for fn in fns:
        outputs = []
        for entry in fn._input_metadata:
            key = (*entry.shape, entry.dtype, entry.device)
            if key not in known:
                known[key] = (tuple(entry.shape), str(entry.dtype), str(entry.device))
            outputs.append(known[key])
        nodes.append((type(fn).__name__, outputs))
    gc.enable()
    return nodes, edges


MEASURED: dict[str, Callable[[Tensor], object]] = {
    "walk": walk,
    "rows": rows,
    "trace": trace,
    "whole": lambda y: to_dot(trace(y), fold=False, limit=sys.maxsize),
    "dot": lambda y: to_dot(trace(y)),
}
if make_dot is not None:
    MEASURED["torchviz"] = make_dot


def workloads(wide: bool, long: bool) -> dict[str, Callable[[], Tensor]]:
    """Return functions that make new graphs. No variable of the caller of `trace` is a model."""
    images = torch.ones(1 if wide else 2, 3, 64, 64)
    words = models.tokens(16)
    made: dict[str, Callable[[], Tensor]] = {"worked example": lambda: models.worked_example()["y"]}
    for depth in (50, 152):
        resnet = models.ResNet(depth, 64 if wide else 4)
        made[f"ResNet-{depth}"] = lambda m=resnet: m(images).sum()
    for name, layers, width, heads in (("small", 12, 768, 12), ("medium", 24, 1024, 16)):
        gpt2 = models.gpt2(layers, width if wide else 16, heads if wide else 2)
        made[f"GPT-2 {name}"] = lambda m=gpt2: m(words).logits.sum()
    llama = models.llama(32, 512 if wide else 16)
    made["Llama, 32 layers"] = lambda: llama(words).logits.sum()
    rnn = models.UnrolledRNN(1000)
    made["RNN, 1,000 steps"] = lambda: rnn(torch.ones(1, 4)).sum()
    made["dense, 300 layers"] = lambda: models.dense_block(300)
    for length in (1000, 10_000, *((100_000, 1_000_000) if long else ())):
        made[f"chain of {length:,}"] = lambda n=length: models.chain(n)
    return made


def measure(make: Callable[[], Tensor], rounds: int) -> tuple[int, dict[str, float]]:
    """Return the number of nodes of a workload, and seconds by measurement; NaN for a failure."""
    times: dict[str, list[float]] = {name: [] for name in MEASURED}
    nodes = 0
    for _ in range(rounds):
        for name, run in MEASURED.items():
            if nodes > 10_000 and name in ("whole", "dot", "torchviz"):
                continue  # skip a drawing that nobody could read
            y = make()
            if nodes > 10_000 or not nodes:
                nodes = len(trace(y).nodes)  # tracing also frees a deep graph after the bare walk
                y = y if nodes > 10_000 else make()
            gc.collect()
            start = time.thread_time()
            try:
                result = run(y)
            except RecursionError:
                continue
            times[name].append(time.thread_time() - start)
            del result, y
    return nodes, {name: statistics.median(t) if t else float("nan") for name, t in times.items()}


def peak(length: int) -> tuple[float, float]:
    """Return the memory in GB of a process that made a chain, and its peak after tracing it."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tests.support import models;"
        "from graphviz_torch import trace;"
        # Not getrusage: it counts the parent's memory for a child.
        "used = lambda: open('/proc/self/status').read().split('VmHWM:')[1].split()[0];"
        "y = models.chain(int(sys.argv[2])); before = used(); graph = trace(y);"
        "print(before, used())"
    )
    command = [sys.executable, "-c", code, str(ROOT), str(length)]
    before, after = subprocess.run(command, capture_output=True, check=True).stdout.split()
    return int(before) / 1e6, int(after) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {'real widths' if options.wide else 'narrow models'}")
    heads = [*MEASURED, "trace/walk", "trace/rows", "torchviz/whole", "torchviz/dot"]
    print(f"{'µs a node':20}{'nodes':>9}" + "".join(f"{head:>15}" for head in heads))
    for name, make in workloads(options.wide, options.long).items():
        rounds = options.rounds if "000,000" not in name else 3
        nodes, seconds = measure(make, rounds)
        figures = [second / nodes * 1e6 for second in seconds.values()]
        figures.append(seconds["trace"] / seconds["walk"])
        figures.append(seconds["trace"] / seconds["rows"])
        peer = seconds.get("torchviz", float("nan"))
        figures += [peer / seconds["whole"], peer / seconds["dot"]]
        print(f"{name:20}{nodes:9,}" + "".join(f"{figure:15.2f}" for figure in figures), flush=True)
    if options.long:
        before, after = peak(1_000_000)
        print(
            f"a process that made 1,000,000 nodes takes {before:.2f} GB, {after:.2f} GB with trace"
        )


if __name__ == "__main__":
    main()
