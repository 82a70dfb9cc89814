"""Graphs that trigger the rules on devices, and similar ones that do not."""

from __future__ import annotations

from tests.findings.by_hand.graphs import Case, mixed, model

CASES: dict[str, Case] = {
    "mixed-devices": Case(
        mixed("cpu", "cuda:0"),
        "error",
        "addmm at net.py:9 got x on cpu (made at train.py:3) and fc.weight on cuda:0 "
        "(made at train.py:8).",
        [mixed("cuda:0", "cuda:0"), mixed("cpu", "cuda:0", shape=()), model()],
    )
}
