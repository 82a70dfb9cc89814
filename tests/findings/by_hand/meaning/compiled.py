"""Graphs that trigger the rules on compiled regions, and similar ones that do not."""

from __future__ import annotations

from graphviz_torch.findings.rules.meaning.compiled import Recompilation, SkippedFunction
from graphviz_torch.graph.events import GraphBreak
from tests.findings.by_hand.graphs import Case, event, told

SIZE = "tensor 'x' size mismatch at index 0. expected 4, actual 3"

CASES: dict[str, Case] = {
    "compile-graph-break": Case(
        told(event(GraphBreak, reason="Unsupported Tensor.item() call", call="item")),
        "info",
        "Graph break at train.py:7: item() returns a Python number. Code after it is compiled "
        "as another region.",
        [told(), told(event(Recompilation, function="forward", reason=SIZE))],
    ),
    "compile-skipped": Case(
        told(event(SkippedFunction, function="forward", reason="generic_jump", call="branch")),
        "info",
        "Graph break at train.py:7: a Python branch depends on the value of a tensor. "
        "torch.compile cannot resume there and skips forward(): Python runs it, and only the "
        "functions that it calls may be compiled.",
        [told(), told(event(GraphBreak, reason="generic_jump", call="branch"))],
    ),
    "compile-recompile": Case(
        told(event(Recompilation, function="forward", reason=SIZE, count=2)),
        "info",
        f"forward() at train.py:7 was compiled 3 times. The last failed guard: {SIZE}.",
        [told(), told(event(GraphBreak, reason="Unsupported Tensor.item() call", call="item"))],
    ),
}
