"""Graphs that trigger the rules on targets, and similar ones that do not."""

from __future__ import annotations

from typing import Any

from graphviz_torch.findings.rules.meaning.targets import LossTarget
from graphviz_torch.graph import Graph, Operand, TensorMeta
from tests.findings.by_hand.graphs import Case, event, told

Y = Operand("y", TensorMeta((8,), "int64", "cpu"))


def given(function: str, what: str, **fields: Any) -> Graph:
    return told(event(LossTarget, function=function, what=what, target=Y, **fields))


CASES: dict[str, Case] = {
    "target-out-of-range": Case(
        given("hinge_embedding_loss", "outside", count=3, among=8),
        "warning",
        "hinge_embedding_loss at train.py:7 takes targets of 1 and -1, but 3 of 8 values in y "
        "are not.",
        [given("cross_entropy", "constant", count=16, among=1)],
    ),
    "ignored-targets": Case(
        given("cross_entropy", "ignored", count=1, among=2),
        "warning",
        "cross_entropy at train.py:7 ignores all targets in y, in 1 of 2 calls: the mean of no "
        "terms is NaN, and their sum is 0.",
        [given("cross_entropy", "constant", count=16, among=1)],
    ),
    "constant-targets": Case(
        given("cross_entropy", "constant", index=2, count=16, among=1),
        "info",
        "cross_entropy at train.py:7 got 16 targets in y, and all of them are 2.",
        [given("cross_entropy", "ignored", count=1, among=2)],
    ),
}
