"""For each rule of calls: a graph that it names something in, and near misses."""

from __future__ import annotations

from typing import Any

from graphviz_torch.graph import Graph
from graphviz_torch.graph.events import IdleCall, RepeatedBatch
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
    "decayed-norms": Case(
        idle("decay", name="o", count=1, among=2, number=0.1, nodes=(0,)),
        "info",
        "Group 1 of the 2 groups of o, which steps at train.py:7, decays body.weight by 0.1, "
        "while another group is there for biases and norms that are not to decay.",
        [idle("decay", name="o", count=1, among=2), idle("group", name="o")],
    ),
    "shared-by-optimizers": Case(
        idle("overlap", name="o", optimizer="p", nodes=(0,)),
        "info",
        "o, which steps at train.py:7, and p both hold body.weight: each of them changes it.",
        [idle("overlap", name="o", optimizer="p"), idle("decay", name="o", nodes=(0,))],
    ),
    "rate-of-zero": Case(
        idle("rate", name="o", count=4),
        "warning",
        "o stepped at train.py:7 with a learning rate of 0, in each of 4 steps: they change "
        "nothing.",
        [idle("optimizer", name="o", count=4)],
    ),
    "optimizer-epsilon": Case(
        idle("epsilon", name="o", number=1e-8, nodes=(0,)),
        "warning",
        "The eps of o, which steps at train.py:7, is 1e-08: in float16 that is 0, and a step "
        "divides by 0 where the gradients were 0.",
        [idle("rate", name="o")],
    ),
    "scheduler-without-steps": Case(
        idle("lone scheduler", name="s", count=4),
        "warning",
        "s stepped 4 times at train.py:7, and the optimizer that it was made for never: its rates "
        "are used by nothing.",
        [idle("past the end", name="s", optimizer="o", count=4, among=3)],
    ),
    "clip-bound": Case(
        idle("low bound", name="clip_grad_norm_", count=6, number=0.02),
        "info",
        "clip_grad_norm_() at train.py:7 shortened each of 6 gradients, to 0.02 of their norm in "
        "the median: each then has the norm of the bound.",
        [idle("samples", name="clip_grad_norm_")],
    ),
    "called-for-each-sample": Case(
        idle("samples", name="Net", count=32),
        "info",
        "Net ran 32 times at train.py:7, on one slice after the other of the same tensor: one "
        "call for all of them does the same work in less time.",
        [idle("high bound", name="clip_grad_norm_", count=6, number=200.0)],
    ),
    "repeated-batch": Case(
        told(event(RepeatedBatch, what="workers", count=4, among=8, workers=2)),
        "warning",
        "4 of 8 batches of the DataLoader at train.py:7 are equal to one that another of its 2 "
        "workers had just given.",
        [idle("samples", name="Net")],
    ),
}
