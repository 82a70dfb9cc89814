"""Rules about a loss whose value jumps by orders of magnitude between two steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...graph import Finding, Graph, Node
from ...graph.units import number_text
from ..rule import finding, rule
from ..words import at

_MIN_LOSS, _MIN_RATIO = 1e4, 1e4  # a loss that is larger, and larger than in other steps by this
# Operations whose results have no bound near a certain argument, such as 0.
_UNBOUNDED = ("div", "reciprocal", "pow", "exp", "exp2", "expm1", "log", "rsqrt", "sinh", "cosh")


@rule("warning", reads="steps", advanced=True, caused_by=("overlap-loss",))
def loss_spike(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """The loss of one step is ten thousand times as large as in the step before or after.

    ## Why it matters

    Such a step changes the parameters, or the optimizer's moments, more than all other steps.
    Gradient clipping limits only the length of the step: it still follows the spike alone.

    The cause is often a denominator that comes close to 0, as in a Dice loss of logits whose sum
    may be negative, or a power or exponential of a value that has no bound.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import find, record

    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    with record(model) as recording:
        score = model(torch.tensor([[1.0], [-1.0]])).sum().clamp(min=1e-8)
        (1 / score).backward()  # <- reported
        before = recording.next_step()
        score = model(torch.tensor([[1.0], [2.0]])).sum().clamp(min=1e-8)
        (1 / score).backward()
    findings = find(recording, before)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import find, record

    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    with record(model) as recording:
        score = model(torch.tensor([[1.0], [-1.0]])).sigmoid().sum().clamp(min=1e-8)
        (1 / score).backward()
        before = recording.next_step()
        score = model(torch.tensor([[1.0], [2.0]])).sigmoid().sum().clamp(min=1e-8)
        (1 / score).backward()
    findings = find(recording, before)
    ```

    ## When it is intended

    The first loss of a regression on values that are not normalized may be large, and may become
    small quickly. Steps with different losses, as of a generator and a discriminator, are not
    compared.

    ## Not detected

    Only losses above 10,000 are reported, and only steps that follow each other in a recording are
    compared.

    ## See also

    - [torch.nn.utils.clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
    """
    losses = [_loss(graph) for graph in graphs]
    for i in (len(graphs) - 2, len(graphs) - 1):
        if i < 0 or len(graphs) < 2:
            continue
        beside = i - 1 if i == len(graphs) - 1 else i + 1
        one, other = losses[i], losses[beside]
        if one is None or not math.isfinite(one):
            continue  # a loss that is not finite is reported by another rule
        if not other or abs(one) < max(_MIN_LOSS, _MIN_RATIO * abs(other)):
            continue
        if not _is_same_loss(graphs[i], graphs[beside]):
            continue
        node = _unbounded_node(graphs[i])
        loss = graphs[i].nodes[graphs[i].outputs[0][0]]
        where = loss.where if node is None else node.where
        made = ""
        if node is not None:
            kind = ", whose denominator is close to 0" if node.operation == "div" else ""
            made = f" The cause is {node.operation}{at(node.where)}{kind}."
        yield finding(
            "warning",
            f"The loss{at(loss.where)} was {number_text(one)} in one step, and "
            f"{number_text(other)} in the step "
            f"{'before' if i == len(graphs) - 1 else 'after'} it.{made}",
            cause="a loss that jumps",
            advice="Bound the arguments of the operation, for example by a sigmoid or softmax "
            "before a Dice loss, or add a larger constant to the denominator.",
            where=where,
        )


def _loss(graph: Graph) -> float | None:
    """Return the value of the loss; None if it has several elements or was not recorded."""
    if len(graph.outputs) != 1:
        return None
    node, index = graph.outputs[0]
    values = graph.nodes[node].values
    found = values[index] if index < len(values) else None
    return float(found[0]) if found is not None and len(found) == 1 else None


def _is_same_loss(one: Graph, other: Graph) -> bool:
    """Return True if two graphs compute their loss at the same line, or by the same operations."""
    lines = {graph.nodes[graph.outputs[0][0]].where for graph in (one, other)}
    operations = {tuple(node.operation for node in graph.nodes) for graph in (one, other)}
    return len(lines) == 1 or len(operations) == 1


def _unbounded_node(graph: Graph) -> Node | None:
    """Return the unbounded operation with the largest result, as far as results were recorded."""
    sizes = {
        node.id: max(abs(float(value)) for value in node.values[0] or (0.0,))
        for node in graph.nodes
        if node.operation in _UNBOUNDED and node.values and node.values[0]
    }
    if not sizes:
        return None
    largest = max(sizes, key=sizes.__getitem__)
    return graph.nodes[largest] if sizes[largest] > _MIN_LOSS else None
