"""Rules about the loss's value: a first loss far above that of a guess, and jumps between steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...graph import Finding, Graph, Node, Parameter
from ...graph.nodes import SAME_VALUES
from ...graph.units import number_text
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

_LOSSES = ("nll_loss", "nll_loss2d")
_FACTOR = 5  # reported if the loss is this many times that of a guess, and larger by 5
_SPREAD = 3  # a weight is named if its standard deviation is this many times the usual one
_SHAPES = {*SAME_VALUES, "slice", "index", "expand", "select", "_unsafe_view"}
_PRODUCTS = ("addmm", "mm", "linear", "bmm", "baddbmm")


@rule("info", reads="recording")
def loss_above_guess(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """The first cross entropy is several times that of a guess, which gives each class the same
    probability.

    ## Why it matters

    A new model knows nothing about the classes, so its first loss should be about the logarithm of
    their number. A much larger loss means that the first scores are much too large: an input is not
    normalized, or a weight has the wrong scale. The first steps then only make the scores smaller.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.arange(32.0).view(8, 4) * 8, torch.arange(8) % 3
    with record(model) as recording:
        loss = nn.functional.cross_entropy(model(images), labels)  # <- reported
        loss.backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.arange(32.0).view(8, 4) / 32, torch.arange(8) % 3
    with record(model) as recording:
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    ```

    ## When it is intended

    A trained model may meet data of another kind, which it classifies wrongly with confidence. A
    contrastive loss divides by a low temperature on purpose.

    ## Not detected

    Losses other than cross entropy, sums over samples, and a loss below five times that of a guess
    are not reported.

    ## See also

    - [torch.nn.init](https://docs.pytorch.org/docs/stable/nn.init.html)
    """
    for graph in graphs[:1]:
        reading = Reading(graph)
        for node in reading.of_operations(_LOSSES):
            found = _scores(reading, node)
            value = next(iter(node.values[0] or ()), None) if node.values else None
            if found is None or not isinstance(value, float) or not math.isfinite(value):
                continue
            scores, classes = found
            guess = math.log(classes)
            if value < _FACTOR * guess or value < guess + _FACTOR:
                continue
            yield _finding(reading, node, value, classes, _wide_weight(reading, scores))
            return


def _finding(
    reading: Reading, node: Node, value: float, classes: int, weight: Parameter | None
) -> Finding:
    reason = "the first scores are too large"
    advice = "Normalize the inputs, and check the initialization of the last layers."
    if weight is not None and weight.norm is not None:
        spread = weight.norm / math.sqrt(math.prod(weight.tensor.shape))
        usual = 1 / math.sqrt(weight.tensor.shape[-1])
        reason += f", because {weight.name} has a standard deviation of {spread:.2g}, where "
        reason += f"{usual:.2g} is usual"
        advice = f"Initialize {weight.name} with a smaller standard deviation."
    return finding(
        "info",
        f"The first cross entropy{at(node.where)} is {value:.3g}, while a guess among {classes} "
        f"classes has ln({classes}) = {math.log(classes):.3g}: {reason}.",
        cause="scores that are too large at first",
        advice=advice,
        where=node.where,
        nodes=(node.id,) if weight is None or weight.node is None else (node.id, weight.node),
    )


def _scores(reading: Reading, loss: Node) -> tuple[Node, int] | None:
    """Return the node that computes the scores of a loss, and the number of classes."""
    node: Node | None = loss
    while node is not None and node.operation in (*_LOSSES, *_SHAPES):
        edge = next(iter(reading.inputs[node.id]), None)
        node = None if edge is None else reading.graph.nodes[edge.source]
    if node is None or node.operation != "log_softmax" or not reading.inputs[node.id]:
        return None
    meta = reading.meta(node.id)
    shape = () if meta is None else meta.shape
    classes = shape[1] if len(shape) > 1 else math.prod(shape)
    scores = reading.graph.nodes[reading.inputs[node.id][0].source]
    return (scores, classes) if classes > 1 else None


def _wide_weight(reading: Reading, node: Node) -> Parameter | None:
    """Return the weight that computes the scores, if its values are unusually large."""
    while node.operation in _SHAPES and reading.inputs[node.id]:
        node = reading.graph.nodes[reading.inputs[node.id][0].source]
    if node.operation not in _PRODUCTS:
        return None
    sources = [edge.source for edge in reading.inputs[node.id]]
    for source in list(sources):
        if reading.graph.nodes[source].operation in (*SAME_VALUES, "expand"):
            sources += [edge.source for edge in reading.inputs[source]]
    for parameter in reading.graph.parameters:
        shape = parameter.tensor.shape
        if parameter.node not in sources or len(shape) != 2 or parameter.norm is None:
            continue
        if parameter.norm / math.sqrt(math.prod(shape)) > _SPREAD / math.sqrt(shape[-1]):
            return parameter
    return None


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
