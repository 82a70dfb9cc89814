"""Graphs that trigger the rules on failures, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.graph import Cause, Failure, Graph, Operand, TensorMeta
from tests.findings.by_hand.graphs import Case, chain, mixed, model

KEPT = Operand("h", TensorMeta((4,), "float32", "cpu"))


def in_place(*causes: Cause, node: int | None = 1, kept: Operand | None = KEPT) -> Graph:
    """Backward of head.weight's sum could not run addmm."""
    graph = chain("head.weight", "AddmmBackward0", "SumBackward0")
    graph = graph.annotate(where={1: "net.py:7"}, module={1: "head"})
    failure = Failure("RuntimeError", "changed", "backward", "train.py:9")
    return replace(graph, failure=replace(failure, node=node, modified=kept, causes=causes))


def again(*nodes: int, where: str = "train.py:9") -> Graph:
    """Backward could not run addmm, which had run in an earlier one; the sum, too, if so said."""
    graph = in_place(Cause("backward", where, nodes), kept=None)
    return graph.annotate(where={2: "train.py:8"})


CASES: dict[str, Case] = {
    "exception": Case(
        mixed("cpu", "cpu"),
        "error",
        "addmm at net.py:9 ended with RuntimeError: bad shapes; it got x (f32[4] cpu) and "
        "fc.weight (f32[4, 4] cpu).",
        [mixed("cpu", "cuda:0"), model(failure=Failure("KeyboardInterrupt", ""))],
    ),
    "changed-in-place": Case(
        in_place(Cause("add_", "net.py:8", (2,), "h += 1")),
        "error",
        "backward at train.py:9 failed: addmm in head at net.py:7 needs the original values of "
        "h (f32[4] cpu), but add_ at net.py:8 (h += 1) changed it in place.",
        [in_place(kept=None), in_place(node=None), again(1, 2)],
    ),
    "backward-twice": Case(
        again(1, 2),
        "error",
        "backward at train.py:9 failed: sum at train.py:8 uses addmm in head at net.py:7, which "
        "backward at train.py:9 had run, and its saved tensors were freed.",
        [in_place(Cause("add_", "net.py:8")), in_place(kept=None)],
    ),
}
