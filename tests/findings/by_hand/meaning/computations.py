"""Graphs that trigger the rules on computations, and similar ones that do not."""

from __future__ import annotations

from graphviz_torch.graph import Graph
from tests.findings.by_hand.graphs import Case, made


def summed(*sides: int, module: str = "block") -> Graph:
    graph = made(("w", (8,), ()), ("sin", (8,), (0,)), ("cos", (8,), (1,)), ("add", (8,), sides))
    return graph.annotate(module={3: module})


def layers(first: str, second: str) -> Graph:
    """Two layers, whose products and weights have these dtypes; the weights are float32."""
    rows = ("w", (8, 8), ()), ("to_copy", (8, 8), (0,)), ("mm", (4, 8), (1,))
    graph = made(*rows, ("v", (8, 8), ()), ("transpose", (8, 8), (3,)), ("mm", (4, 8), (2, 4)))
    dtypes = {1: first, 2: first, 5: second}
    metas = [node.outputs[0] for node in graph.nodes]
    changed = {i: (m._replace(dtype=dtypes[i]),) for i, m in enumerate(metas) if m and i in dtypes}
    return graph.annotate(outputs=changed, module={2: "body", 5: "head"})


CASES: dict[str, Case] = {
    "self-add": Case(
        summed(2, 2),
        "warning",
        "add at net.py:3 adds cos to itself, which only doubles it.",
        [summed(1, 2), summed(2), summed(1, 2, module="")],
    ),
    "outside-autocast": Case(
        layers("bfloat16", "float32"),
        "info",
        "head at net.py:5 computed in float32, and 1 other matrix product in bfloat16: autocast "
        "was disabled in the float32 layers.",
        [layers("float32", "float32"), layers("bfloat16", "bfloat16")],
    ),
}
