"""Graphs that trigger the rules on leaves, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.findings.rules.leaves import (
    DataAssignment,
    GradientRead,
    UnregisteredParameters,
)
from graphviz_torch.graph import Failure
from graphviz_torch.graph.events import LeafBackward
from tests.findings.by_hand.graphs import COLUMN, Case, event, told

NONE = Failure("TypeError", "unsupported operand: 'NoneType'", "", "train.py:7")

NON_LEAF = Failure("ValueError", "can't optimize a non-leaf Tensor", "", "train.py:7", (COLUMN,))


CASES: dict[str, Case] = {
    "loss-is-a-leaf": Case(
        told(
            event(LeafBackward, label="loss", maker="requires_grad", nodes=(0,)), outputs=((0, 0),)
        ),
        "error",
        "backward started from loss, which was made a leaf by requires_grad at train.py:7: a "
        "leaf has no history, so no parameter gets a gradient.",
        [told(event(LeafBackward, label="x", nodes=(0,)))],  # backward starts from what follows
    ),
    "grad-of-non-leaf": Case(
        told(event(GradientRead, label="y", tensor=COLUMN, nodes=(1,)), failure=NONE),
        "error",
        "y.grad at train.py:7 is None, because y is not a leaf: it was computed at train.py:5 by "
        "addmm.",
        [told(failure=NONE)],
    ),
    "non-leaf-in-optimizer": Case(
        told(failure=NON_LEAF),
        "error",
        "The optimizer at train.py:7 got y, which is not a leaf: it was computed at train.py:5 by "
        "addmm.",
        [told(failure=NONE)],
    ),
    "data-assignment": Case(
        told(event(DataAssignment, label="x", value=COLUMN, nodes=(1,))),
        "warning",
        "x.data = y at train.py:7 copies values without their history: no gradient flows "
        "from x to the source of y.",
        [told()],
    ),
    "not-registered": Case(
        replace(
            told(event(UnregisteredParameters, name="layers", holder="list", nodes=(0,))),
            parameters=(),
        ).annotate(where={1: "net.py:3"}),
        "warning",
        "No optimizer updates 1 parameter in layers, which got a gradient at net.py:3: layers, "
        "set at train.py:7, is a plain list, so it is not registered.",
        [told()],
    ),
}
