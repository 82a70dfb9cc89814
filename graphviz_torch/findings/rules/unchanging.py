"""Rules about terms of the loss that do not change."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding, Node, Operand
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.operations import SAME_VALUES
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

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
