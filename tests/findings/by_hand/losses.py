"""Graphs that trigger the rules on losses, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.findings.rules.broadcasts import AccidentalBroadcast
from graphviz_torch.graph import Operand, TensorMeta
from graphviz_torch.graph.events import LossCall
from tests.findings.by_hand.graphs import COLUMN, Case, chain, event, told

ROW = Operand("target", TensorMeta((100,), "float32", "cpu"))

SCALAR = Operand("target", TensorMeta((), "float32", "cpu"))

CASES: dict[str, Case] = {
    "loss-input": Case(
        chain("head.weight", "SoftmaxBackward0", "ViewBackward0", "NllLossBackward0").annotate(
            operation={3: "nll_loss"}, where={3: "train.py:9"}
        ),
        "warning",
        "nll_loss at train.py:9 takes log-probabilities, but got probabilities from softmax.",
        [
            chain("head.weight", "SoftmaxBackward0", "LogBackward0", "NllLossBackward0").annotate(
                operation={3: "nll_loss"}
            ),
            chain("head.weight", "NllLossBackward0").annotate(operation={1: "nll_loss"}),
        ],
    ),
    "accidental-broadcast": Case(
        told(event(AccidentalBroadcast, operation="mse_loss", operands=(COLUMN, ROW))),
        "warning",
        "mse_loss at train.py:7 broadcast y [100, 1] with target [100] to [100, 100]: each "
        "element of one is paired with every element of the other.",
        [
            told(event(LossCall, function="mse_loss", operands=(COLUMN, COLUMN))),
            told(event(AccidentalBroadcast, operation="mse_loss", operands=(SCALAR, SCALAR))),
        ],
    ),
    "loss-input (kl_div)": Case(
        replace(
            chain("w", "SoftmaxBackward0", "SqueezeBackward0"),
            events=(event(LossCall, function="kl_div", operands=(replace(COLUMN, node=2), ROW)),),
        ),
        "warning",
        "kl_div at train.py:7 takes log-probabilities, but got probabilities from softmax.",
        [
            replace(
                chain("w", "LogSoftmaxBackward0"),
                events=(event(LossCall, function="kl_div", operands=(COLUMN, ROW)),),
            )
        ],
    ),
}
