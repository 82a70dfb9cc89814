"""Rules about a first loss that is far above the loss of a guess."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...graph import Finding, Graph, Node, Parameter
from ...graph.operations import SAME_VALUES
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
