"""Graphs that trigger the rules on freezing and modes, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.findings.rules.freezing import AttributeAssignment, EvalMode
from graphviz_torch.graph import Failure, Graph
from graphviz_torch.graph.events import ParameterFreeze
from tests.findings.by_hand.graphs import Case, event, lost, model, parameter, told

NO_GRAD = Failure(
    "RuntimeError", "element 0 of tensors does not require grad", "backward", "t.py:9"
)


CASES: dict[str, Case] = {
    "frozen": Case(
        model(lost("head.weight", requires_grad=False)),
        "info",
        "head.weight is frozen: requires_grad is False.",
        [model(lost("head.weight"))],
    ),
    "attribute-without-effect": Case(
        told(event(AttributeAssignment, owner="body", attribute="requires_grad")),
        "warning",
        "requires_grad was set on the module body at train.py:7: modules have no such setting, "
        "so nothing is frozen.",
        [
            replace(
                told(event(AttributeAssignment, owner="body.weight", attribute="require_grad")),
                parameters=(parameter("body.weight", requires_grad=False), parameter("a.weight")),
            )
        ],
    ),
    "frozen (everything)": Case(
        Graph(
            (),
            parameters=(parameter("fc.weight", requires_grad=False),),
            events=(event(ParameterFreeze),),
            failure=NO_GRAD,
        ),
        "error",
        "The only parameter is frozen at train.py:7: requires_grad is False, so the loss needs no "
        "gradient.",
        [Graph((), parameters=(parameter("fc.weight"),), failure=NO_GRAD)],
    ),
    "trained-in-eval-mode": Case(
        told(event(EvalMode, module="drop", classes=("Dropout",), nodes=(1,))),
        "warning",
        "The model was trained in eval mode: Dropout (drop) behaved as in evaluation; "
        "eval() was called at train.py:7.",
        [
            model(events=(event(EvalMode, module="drop", classes=("Dropout",), nodes=(1,)),)),
            told(event(EvalMode, module="drop", classes=("Dropout",))),  # of another backward
        ],
    ),
}
