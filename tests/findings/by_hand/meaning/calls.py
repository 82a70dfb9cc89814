"""For each rule of calls: a graph that it names something in, and near misses."""

from __future__ import annotations

from typing import Any

from graphviz_torch.graph import Graph
from graphviz_torch.graph.events import IdleCall
from tests.findings.by_hand.graphs import Case, event, told


def idle(what: str, **fields: Any) -> Graph:
    return told(event(IdleCall, what=what, **fields))


CASES: dict[str, Case] = {
    "dropout-in-evaluation": Case(
        idle("dropout", name="dropout"),
        "warning",
        "dropout() at train.py:7 drops values in eval mode, too: its dropout does not go by the "
        "mode of the model.",
        [idle("group", name="o"), told()],
    ),
    "graph-kept-for-nothing": Case(
        idle("graph", name="backward", count=3),
        "info",
        "backward at train.py:7 keeps its graph (retain_graph or create_graph) 3 times, and "
        "nothing runs through it again.",
        [idle("dropout", name="dropout")],
    ),
    "scheduler-steps": Case(
        idle("scheduler", name="s", optimizer="o", count=8, among=4),
        "warning",
        "s stepped 8 times at train.py:7, while o stepped 4 times: the rate changes "
        "faster than the schedule was made for.",
        [idle("optimizer", name="o")],
    ),
    "optimizer-made-anew": Case(
        idle("optimizer", name="o", count=4),
        "warning",
        "o, which steps at train.py:7, was made anew for each of 4 steps: its moments begin at "
        "zero each time.",
        [idle("scheduler", name="s", optimizer="o")],
    ),
    "empty-group": Case(
        idle("group", name="o", count=1, among=2),
        "info",
        "Group 1 of the 2 groups of o, which steps at train.py:7, is empty: no parameter fitted "
        "it, and its options apply to nothing.",
        [idle("optimizer", name="o")],
    ),
}
