"""Graphs that trigger the rules on paths to parameters, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.findings.rules.leaves import DataAssignment
from graphviz_torch.graph import Graph
from tests.findings.by_hand.graphs import COLUMN, Case, cut, event, lost, model, parameter

# By a value that no node of the graph made.
REPLACED = event(DataAssignment, label="x", value=replace(COLUMN, node=None))

CASES: dict[str, Case] = {
    "never-called": Case(
        model(lost("head.0.weight", module_called=False), lost("head.0.bias", module_called=False)),
        "warning",
        "head.0.weight and head.0.bias got no gradient: head was never called.",
        [
            model(parameter("head.weight", module_called=False)),  # used without its module
            model(lost("head.weight", module_called=False, requires_grad=False)),
            # An earlier backward gave it one.
            model(lost("head.weight", module_called=False, got_gradient=True)),
            # No backward ran in the block: nothing has a gradient yet.
            Graph(
                (),
                parameters=(
                    lost("a.weight", module_called=True),
                    lost("b.weight", module_called=False),
                ),
            ),
        ],
    ),
    "output-not-in-loss": Case(
        model(lost("head.weight")),
        "warning",
        "head.weight got no gradient: head ran, but the loss does not depend on its result.",
        [
            model(lost("head.weight", module_called=False)),
            cut(),
            model(lost("head.weight"), events=(REPLACED,)),  # its result may be in x.data
        ],
    ),
    "not-in-optimizer": Case(
        model(parameter("head.weight", stepped=False)),
        "warning",
        "No optimizer updates head.weight, which got a gradient.",
        [model(parameter("head.weight")), model(lost("head.weight", stepped=False))],
    ),
}
