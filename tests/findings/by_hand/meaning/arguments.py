"""For each rule of arguments and first values: a graph that triggers it, and near misses."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.graph import Graph
from tests.findings.by_hand.graphs import Case, made, stats


def clamped(dtype: str, least: str) -> Graph:
    graph = made(("w", (3,), ()), ("sin", (3,), (0,)), ("clamp", (3,), (1,)), clamp=f"min={least}")
    metas = tuple(node.outputs[0]._replace(dtype=dtype) for node in graph.nodes)
    nodes = tuple(n._replace(outputs=(m,)) for n, m in zip(graph.nodes, metas, strict=True))
    return replace(graph, nodes=nodes)


def product(first: float, second: float, zeros: float = 1.0) -> Graph:
    graph = made(("w", (6, 2), ()), ("v", (2, 6), ()), ("mm", (8, 2), (0,)), ("mm", (8, 6), (2, 1)))
    norms = {"w": first, "v": second}
    parameters = tuple(
        replace(p, norm=norms[p.name], tensor=p.tensor._replace(shape=(2, 6)))
        for p in graph.parameters
    )
    nodes = (graph.nodes[0]._replace(grad_outputs=stats(0.0, zeros)), *graph.nodes[1:])
    return replace(graph, nodes=nodes, parameters=parameters)


CASES: dict[str, Case] = {
    "vanished-epsilon": Case(
        clamped("float16", "1e-08"),
        "info",
        "1e-08, which clamp at net.py:2 was given, is 0 in float16: it keeps nothing away from 0.",
        [clamped("float32", "1e-08"), clamped("float16", "1e-04"), clamped("float16", "0")],
    ),
    "zero-factors": Case(
        product(0.0, 0.0),
        "warning",
        "w and v are both zero, and meet at net.py:3: w gets a gradient of zeros only.",
        [product(1.0, 0.0), product(0.0, 1.0), product(0.0, 0.0, zeros=0.5)],
    ),
}
