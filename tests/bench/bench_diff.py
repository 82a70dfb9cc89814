"""Measure `diff` on growing graphs, compared with `difflib` on the names of the nodes.

    python -m tests.bench.bench_diff [nodes ...]

The default is 2500 20000. `difflib` is measured up to 2,500 nodes.
"""

from __future__ import annotations

import difflib
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from graphviz_torch import Graph, diff, trace
from graphviz_torch.graph import TensorMeta

BLOCK = 8  # number of nodes in a block, with its parameters


def tower(blocks: int, change: str = "") -> Graph:
    """Return the graph of a residual tower of Linear, activation, Linear, with one change."""
    width = 8 if change == "wider" else 4
    x = torch.ones(2, width)
    named = {}
    middle = blocks // 2
    for i in range(blocks + (change == "one block more")):
        weight, second = (torch.randn(width, width, requires_grad=True) for _ in range(2))
        if change != "no names":
            named[f"blocks.{i}.a.weight"], named[f"blocks.{i}.b.weight"] = weight, second
        hidden = x @ weight.t()
        swapped = change == "another activation" and i == middle
        hidden = hidden.tanh() if swapped or change == "every activation" else hidden.relu()
        x = x + hidden @ second.t()
    return trace(x.sum(), names=named)


def unrelated(nodes: int) -> Graph:
    """Return a graph that is a chain of random operations."""
    random.seed(nodes)
    x = torch.ones(2, requires_grad=True)
    for _ in range(nodes - 2):
        x = random.choice((torch.sin, torch.exp, torch.neg, torch.tanh, torch.relu))(x)
    return trace(x.sum(), names={})


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main(sizes: list[int]) -> None:
    torch.manual_seed(0)
    print(f"{'nodes':>7}  {'change':<20} {'diff':>8} {'difflib':>9}  found")
    for size in sizes:
        blocks = size // BLOCK
        base = tower(blocks)
        half = base.annotate(
            outputs={i: (TensorMeta((9,), "float16", "cpu"),) for i in range(size // 2)}
        )
        pairs = [
            (change or "nothing", base, tower(blocks, change))
            for change in (
                "",
                "one block more",
                "another activation",
                "every activation",
                "wider",
                "no names",
            )
        ]
        pairs += [("half of the shapes", base, half), ("unrelated", base, unrelated(size))]
        pairs.append(("two random chains", unrelated(size), unrelated(size + 1)))
        for change, a, b in pairs:
            took, found = seconds(lambda a=a, b=b: diff(a, b))
            names = [[node.name for node in graph.nodes] for graph in (a, b)]
            peer = "-"
            if size <= 2500:
                matcher = difflib.SequenceMatcher(None, *names, autojunk=False)
                peer = f"{seconds(matcher.get_opcodes)[0]:.3f} s"
            counts = f"+{len(found.added)} -{len(found.removed)} ~{len(found.changed)}"
            print(f"{len(b.nodes):>7}  {change:<20} {took:>6.3f} s {peer:>9}  {counts}", flush=True)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [2500, 20000])
