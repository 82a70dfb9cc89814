"""Graphs that trigger the rules on memory, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.graph import Graph, RetainedGraphs, Step
from tests.findings.by_hand.graphs import META, MIB, Case, chain, kept, saved


def wide(**dtypes: str) -> Graph:
    names = {"w": 0, "mul": 1, "sum": 2}
    outputs = {names[n]: (META._replace(dtype=dtype),) for n, dtype in dtypes.items()}
    return chain("w", "MulBackward0", "SumBackward0").annotate(outputs=outputs)


CASES: dict[str, Case] = {
    "retained-graph": Case(
        replace(
            chain("w", "MulBackward0"), step=Step(retained=RetainedGraphs(4, "total", "train.py:8"))
        ),
        "warning",
        "The graphs of 4 earlier steps are still in memory: total keeps the result of train.py:8 "
        "with its history.",
        [chain("w", "MulBackward0")],
    ),
    "most-memory": Case(
        kept(saved(3 * MIB, MIB), saved(MIB, MIB)),
        "info",
        "Backward keeps 4.0 MiB of activations, most of it in fc (addmm, 4.0 MiB, 100%).",
        [kept(saved(1000, 250)), kept(saved(3 * MIB, MIB, kind="parameter"))],
    ),
    "unintended-float64": Case(
        wide(mul="float64", sum="float64"),
        "warning",
        "mul returned float64, so 2 of 3 nodes have float64 results, although the parameters "
        "are float32.",
        [wide(), wide(w="float64", mul="float64", sum="float64")],
    ),
    "view-retains-storage": Case(
        kept(saved(8 * MIB, 1000)),
        "warning",
        "addmm in fc saves self (f32[1000] cpu, 3.9 KiB), a view that keeps 8.0 MiB alive.",
        [
            kept(saved(8 * MIB, 2 * MIB)),
            kept(saved(8 * MIB, 1000, kind="input")),
            kept(saved(8 * MIB, 1000), saved(0, 2 * MIB, shared_with=1)),
        ],
    ),
}
