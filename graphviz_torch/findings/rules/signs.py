"""Rules about losses with the wrong sign."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding, Node
from ...graph.events import OptimizerStep
from ...graph.operations import SAME_VALUES
from ..axes import attribute
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

_LOGARITHMS = ("log_softmax", "log_sigmoid")
# Operations that select or add up log-probabilities.
_SELECTING = {"gather", "index", "select", "slice", "diagonal", "sum", "mean", "masked_select"}
_SELECTING |= SAME_VALUES


@rule("warning", of=_LOGARITHMS)
def minimized_log_probability(reading: Reading) -> Iterator[Finding]:
    """The loss is a mean or a sum of log-probabilities without a minus sign, so a step makes the
    probabilities smaller.

    ## Why it matters

    The loss falls without a bound, and the model learns to avoid the targets.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, target = nn.Linear(4, 3), torch.arange(8) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        log_probabilities = model(torch.randn(8, 4)).log_softmax(-1)
        loss = log_probabilities.gather(1, target[:, None]).mean()  # <- reported
        loss.backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, target = nn.Linear(4, 3), torch.arange(8) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        log_probabilities = model(torch.randn(8, 4)).log_softmax(-1)
        loss = -log_probabilities.gather(1, target[:, None]).mean()
        loss.backward()
        optimizer.step()
    ```

    ## When it is intended

    Unlearning by gradient ascent makes the probabilities of its targets smaller on purpose.

    ## Not detected

    Log-probabilities that are multiplied with a tensor, such as an advantage, may have either sign.
    Those that distributions compute, and logarithms of other probabilities, are not checked.

    ## See also

    - [NLLLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html)
    """
    if any(event.maximizes for event in reading.events(OptimizerStep)):
        return
    if not any(p.stepped and p.got_gradient for p in reading.graph.parameters):
        return  # a gradient of log-probabilities may be computed for another purpose
    for root, _ in reading.graph.outputs:
        found = _logarithm(reading, reading.graph.nodes[root])
        if found is None:
            continue
        node, term = found
        name = "log_softmax" if node.operation == "log_softmax" else "logsigmoid"
        yield finding(
            "warning",
            f"The loss adds up log-probabilities of {name}{at(node.where)} without a minus sign: "
            "each step makes these probabilities smaller.",
            cause="log-probability minimized",
            advice="Change the sign of the loss, or construct the optimizer with maximize=True.",
            where=term.where,
            nodes=(node.id, term.id),
        )


def _logarithm(reading: Reading, node: Node) -> tuple[Node, Node] | None:
    """Return the node of a logarithm that is the only term of a loss, and the node that scales it.

    The result is None for any other loss, and for a logarithm with a minus sign.
    """
    first, selects, sign = node, False, 1
    while True:
        edges = reading.inputs[node.id]
        if node.operation in _LOGARITHMS:
            whole = node.operation == "log_sigmoid" or selects
            return (node, first) if sign > 0 and whole else None
        if len(edges) != 1:
            return None
        if node.operation == "neg":
            sign = -sign
        elif node.operation in ("mul", "div"):
            try:
                sign *= 1 if float(attribute(node, "other")) > 0 else -1
            except ValueError:
                return None
        elif node.operation not in _SELECTING:
            return None
        selects = selects or node.operation in ("gather", "index", "diagonal")
        node = reading.graph.nodes[edges[0].source]
