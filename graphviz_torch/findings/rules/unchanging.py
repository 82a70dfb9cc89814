"""Rules about losses, and terms of losses, that do not change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graph import Finding, Graph, Node, Operand
from ...graph.events import Event, OptimizerStep
from ...graph.immutable import immutable
from ...graph.nodes import SAME_VALUES
from ...graph.units import number_text
from ..graph_reading import Reading
from ..rule import finding, finds, rule
from ..words import at
from .silence import ConstantLoss

_SCALES = {*SAME_VALUES, "mul", "div", "neg"}


@immutable
class UnchangingTerm(Event):
    """A term of the loss that has the same value in several steps.

    `where` is the line of the sum.
    """

    term: Operand | None = None
    value: float = 0.0
    count: int = 0  # number of steps


@rule("info", reads="end", of=(UnchangingTerm,))
def unchanging_term(reading: Reading) -> Iterator[Finding]:
    """A term of the loss has the same value in all steps, although it has a gradient.

    ## Why it matters

    A term that is constant by construction trains nothing, such as a sum of probabilities, which is
    always 1. Its gradient is zero up to rounding errors.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    router = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(router.parameters(), lr=0.1)
    with record(router) as recording:
        for _ in range(4):
            weights = router(torch.randn(8, 4)).softmax(-1)
            balance = weights.sum(-1).mean()  # <- reported
            optimizer.zero_grad()
            (weights[:, 0].square().mean() + balance).backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    router = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(router.parameters(), lr=0.1)
    with record(router) as recording:
        for _ in range(4):
            weights = router(torch.randn(8, 4)).softmax(-1)
            balance = weights.mean(0).square().sum()
            optimizer.zero_grad()
            (weights[:, 0].square().mean() + balance).backward()
            optimizer.step()
    ```

    ## When it is intended

    A penalty may stay at its bound for many steps, and a regularizer of frozen weights does not
    change.

    ## Not detected

    Terms with the value 0, such as a hinge without violations, are not reported. Neither are terms
    with more than one element.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """
    for event in reading.events(UnchangingTerm):
        node = None if event.term is None or event.term.node is None else event.term.node
        made = _unscaled_node(reading, node)
        name = (event.term and event.term.label) or "A term of the loss"
        where = made.where if made is not None and made.where else event.where
        yield finding(
            "info",
            f"{name}{at(where)}, added to the loss{at(event.where)}, has the same value "
            f"{event.value:.6g} in {event.count} steps, although parameters changed.",
            cause="constant term of the loss",
            advice="Check from which values the term is computed: a sum of probabilities is always "
            "1, counts of an argmax have no gradient, and the ratio of a policy to itself is 1.",
            where=where,
            nodes=event.nodes,
        )


def _unscaled_node(reading: Reading, node: int | None) -> Node | None:
    """Return the node that computed a scalar, before it was multiplied with constants."""
    while node is not None:
        made, edges = reading.graph.nodes[node], reading.inputs[node]
        if made.operation not in _SCALES or len(edges) != 1:
            return made
        node = edges[0].source
    return None


_DERIVING = ("stack", "cat", "clone", "to_copy", "mul")  # operations that compute weights
_STEPS = 3  # number of steps whose gradients are compared


@finds("constant-loss", reads="steps")
def constant_gradients(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Report a constant loss whose gradients are all constant, too: its inputs do not change."""
    recent = graphs[-_STEPS:]
    losses = [event for event in recent[-1].events if isinstance(event, ConstantLoss)]
    steps = all(any(isinstance(event, OptimizerStep) for event in graph.events) for graph in recent)
    if not losses or not steps or _rounds(recent[-1]):
        return
    norms = [_gradient_norms(graph) for graph in recent]
    if len(norms) == _STEPS and any(norms[0]) and all(each == norms[0] for each in norms):
        loss, made = losses[0], _derived_weights(recent[-1])
        kept = (
            f" The result of {made.operation}{at(made.where)} was probably computed only once."
            if made is not None
            else ""
        )
        yield finding(
            "warning",
            f"The loss was {number_text(loss.value)} at each of {loss.count} backwards"
            f"{at(loss.where)}, and no gradient changed either: the optimizer steps, but the loss "
            f"is computed from other tensors, which stay the same.{kept}",
            cause="a constant loss with constant gradients",
            advice="In each step, compute the loss from the parameters that the optimizer holds, "
            "not from a copy or a stack of them that was made before the loop.",
            where=loss.where,
        )


def _derived_weights(graph: Graph) -> Node | None:
    """Return the first node that computes weights from parameters alone, such as a stack."""
    inputs: dict[int, list[int]] = {}
    for edge in graph.edges:
        inputs.setdefault(edge.target, []).append(edge.source)
    for node in graph.nodes:
        sources = [graph.nodes[i] for i in inputs.get(node.id, ())]
        if sources and node.operation in _DERIVING and all(s.leaf for s in sources):
            return node
    return None


def _rounds(graph: Graph) -> bool:
    """Return True if a node computes in half precision, to which small changes are rounded away."""
    metas = [meta for node in graph.nodes for meta in node.outputs]
    return any(meta is not None and meta.dtype in ("bfloat16", "float16") for meta in metas)


def _gradient_norms(graph: Graph) -> list[float | None]:
    """Return the norms of the gradients at all nodes."""
    stats = [each for node in graph.nodes for each in node.grad_outputs]
    return [None if each is None else each.norm for each in stats]
