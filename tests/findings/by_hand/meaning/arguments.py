"""Graphs that trigger the rules on arguments, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.graph import Graph
from tests.findings.by_hand.graphs import Case, made


def clamped(dtype: str, least: str) -> Graph:
    graph = made(("w", (3,), ()), ("sin", (3,), (0,)), ("clamp", (3,), (1,)), clamp=f"min={least}")
    metas = tuple(node.outputs[0]._replace(dtype=dtype) for node in graph.nodes)
    nodes = tuple(n._replace(outputs=(m,)) for n, m in zip(graph.nodes, metas, strict=True))
    return replace(graph, nodes=nodes)


CASES: dict[str, Case] = {
    "epsilon-underflow": Case(
        clamped("float16", "1e-08"),
        "info",
        "1e-08, an argument of clamp at net.py:2, rounds to 0 in float16, so a division by 0 "
        "is still possible.",
        [clamped("float32", "1e-08"), clamped("float16", "1e-04"), clamped("float16", "0")],
    ),
}
