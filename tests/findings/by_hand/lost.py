"""Graphs that trigger the rules on dropped gradients, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.graph import Graph
from tests.findings.by_hand.graphs import Case, chain, lost, stats


def passed(*norms: float | None, step: str = "MulBackward0") -> Graph:
    """body.weight, a step and a sum in a row, with the gradient that backward had at each."""
    graph = chain("body.weight", step, "SumBackward0")
    given = {
        i: (None,) if norm is None else stats(norm, zeros=float(norm == 0))
        for i, norm in enumerate(norms)
    }
    graph = graph.annotate(order={i: 2 - i for i in range(3)}, grad_outputs=given)
    return replace(graph, parameters=(lost("body.weight", node=0),))


CASES: dict[str, Case] = {
    "backward-returned-none": Case(
        passed(None, 1.0, 1.0, step="ScaleBackward0"),
        "error",
        "body.weight got no gradient: scale received a gradient and passed none on.",
        [passed(1.0, 1.0, 1.0), passed(0.0, 1.0, 1.0), passed(None, None, None)],
    ),
    "zero-gradient": Case(
        passed(0.0, 1.0, 1.0, step="RoundBackward0"),
        "warning",
        "body.weight got a gradient of only zeros: round has slope 0 everywhere.",
        [
            passed(1.0, 1.0, 1.0, step="RoundBackward0"),  # it came by another way
            passed(0.0, 0.0, 0.0, step="RoundBackward0"),  # there was none to pass on
            passed(0.0, 0.0, 1.0, step="GateBackward"),  # what it was given was zeros already
            passed(1.0, 1.0, 1.0, step="GateBackward"),
            passed(0.0, 1.0, 1.0, step="CompiledFunctionBackward"),
            passed(0.0, 1.0, 1.0),  # a factor that is 0 now, as in LoRA at its start
        ],
    ),
}
