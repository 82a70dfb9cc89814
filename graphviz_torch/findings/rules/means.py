"""Rules about losses that are averaged over the wrong number of values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ...graph import Finding, Node
from ...graph.events import AccumulatedBackwards, Event
from ...graph.immutable import immutable
from ...graph.nodes import SAME_VALUES, SUMS
from ...graph.units import count_text
from ..axes import attribute, number
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

_KEEPS_SCALE = {*SAME_VALUES, "neg", "select"}
_MEAN_REDUCTION = 1  # value of a loss node's attribute `reduction` for "mean"
_LOSS_NAMES = {"nll_loss": "cross_entropy", "nll_loss2d": "cross_entropy"}
_LOSSES = (
    *_LOSS_NAMES,
    *("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "binary_cross_entropy"),
    *("binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss"),
)


@rule("info", reads="end", of=(AccumulatedBackwards,))
def undivided_accumulation(reading: Reading) -> Iterator[Finding]:
    """The gradients of several batches are added before each step, and the mean loss of a batch is
    not divided by the number of batches.

    ## Why it matters

    The sum of the gradients of k batches is k times as large as their mean, which is the gradient
    of one batch of the total size. With the sum, SGD takes steps that are k times as long, and
    clipping bounds nearly all gradients.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for i in range(8):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()  # <- reported
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for i in range(8):
            loss = model(torch.randn(8, 4)).square().mean() / 4
            loss.backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    ```

    ## When it is intended

    The learning rate may have been chosen for the sum. If several tasks have a backward each, their
    gradients are usually added without a division.

    ## Not detected

    A loss that is divided by any number, or multiplied by a tensor, is not reported. Neither is a
    step before which the program read the gradients, because it may have divided them.

    ## See also

    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """
    for event in reading.events(AccumulatedBackwards):
        roots = [_undivided_mean(reading, node, event.backwards) for node in event.nodes]
        mean = next((root for root in roots if root is not None), None)
        if mean is None:
            continue
        yield finding(
            "info",
            f"Each step{at(event.stepped)} adds the gradients of {event.backwards} backwards"
            f"{at(event.where)}, whose loss, the {_loss_name(mean)}{at(mean.where)}, is not "
            f"divided by {event.backwards}: they are {event.backwards} times as large as the "
            "gradients of the mean over these batches.",
            cause="accumulated loss not divided",
            advice=f"Divide the loss by {event.backwards} before backward(), or choose the "
            "learning rate and the bound of clipping for the sum.",
            where=event.where,
            nodes=(mean.id,),
        )


def _undivided_mean(reading: Reading, root: int, count: int) -> Node | None:
    """Return a mean that is added to the loss undivided.

    Return None if there is none, or if the loss may be divided by `count`.

    Args:
        reading: the graph.
        root: node of the loss.
        count: number of backwards before the optimizer step.
    """
    mean, stack = None, [root]
    while stack:
        node = reading.graph.nodes[stack.pop()]
        if is_mean(node):
            mean = mean or node
        elif node.operation == "div":
            return None
        elif node.operation == "mul":
            with suppress(ValueError):
                factor = float(attribute(node, "other"))
                if abs(factor * count - 1) > 1e-3:  # the loss is not divided by `count`
                    stack += [edge.source for edge in reading.inputs[node.id]]
                    continue
            return None
        elif node.operation in SUMS or node.operation in _KEEPS_SCALE:
            stack += [edge.source for edge in reading.inputs[node.id]]
    return mean


def is_mean(node: Node) -> bool:
    """Return True for the node of a mean of all values, or of a loss with reduction="mean"."""
    if node.operation == "mean":
        meta = node.outputs[0] if node.outputs else None
        return meta is not None and not meta.shape
    return node.operation in _LOSSES and number(node, "reduction") == _MEAN_REDUCTION


def _loss_name(node: Node) -> str:
    name = _LOSS_NAMES.get(node.operation, node.operation)
    return name if name == "mean" else f"mean of {name}"


@rule("info", of=("div",))
def averaged_twice(reading: Reading) -> Iterator[Finding]:
    """A mean over a batch is divided by the size of the batch again.

    ## Why it matters

    The gradients are too small by a factor of the batch size, so the last, smaller batch of an
    epoch counts more. Adam hides the small scale, but weight decay, clipping and other terms of the
    loss are out of proportion.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    x, target = torch.randn(32, 4), torch.randint(3, (32,))
    with record(model) as recording:
        loss = F.cross_entropy(model(x), target) / len(x)  # <- reported
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    x, target = torch.randn(32, 4), torch.randint(3, (32,))
    with record(model) as recording:
        loss = F.cross_entropy(model(x), target)
        loss.backward()
    ```

    ## When it is intended

    The divisor may be another number that happens to equal the size of the batch.

    ## Not detected

    Losses whose size is not recorded, and divisors that are tensors, are not reported. Neither is a
    divisor that equals the number of backwards before a step.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    """
    accumulated = {event.backwards for event in reading.events(AccumulatedBackwards)}
    for node in reading.of_operations(("div",)):
        divisor = number(node, "other")
        meta = reading.meta(node.id)
        if divisor is None or divisor < 2 or divisor in accumulated or meta is None or meta.shape:
            continue
        mean = _scaled_value(reading, node)
        if mean is None or not is_mean(mean):
            continue
        given = next((reading.meta(e.source, e.output_nr) for e in reading.inputs[mean.id]), None)
        if given is None or not given.shape or given.shape[0] != divisor:
            continue
        yield finding(
            "info",
            f"The {_loss_name(mean)}{at(mean.where)} is averaged over a batch of {divisor} "
            f"already, and is divided by {divisor} again{at(node.where)}.",
            cause="averaged twice",
            advice="Remove the division, or pass reduction='sum' to the loss.",
            where=node.where,
            nodes=(mean.id, node.id),
        )


def _scaled_value(reading: Reading, node: Node) -> Node | None:
    """Return the node whose value `node` scales by a number; nodes that keep the scale are skipped.

    Returns None if the value depends on several inputs, or on none.
    """
    while True:
        edges = reading.inputs[node.id]
        if len(edges) != 1:
            return None
        node = reading.graph.nodes[edges[0].source]
        if node.operation not in _KEEPS_SCALE:
            return node


@rule("info", reads="end")
@immutable
class MeanOverMaskedValues(Event):
    """A mask sets values of a loss to zero, and the mean divides by the number of all values,
    masked ones included.

    ## Why it matters

    The loss is too small by the fraction of masked values. A batch with much padding gets small
    gradients, and the weight of a token depends on the lengths of the other samples.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    x, target = torch.randn(8, 4), torch.arange(8) % 3
    mask = (torch.arange(8) < 5).float()
    with record(model) as recording:
        losses = F.cross_entropy(model(x), target, reduction="none")
        (losses * mask).mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    x, target = torch.randn(8, 4), torch.arange(8) % 3
    mask = (torch.arange(8) < 5).float()
    with record(model) as recording:
        losses = F.cross_entropy(model(x), target, reduction="none")
        ((losses * mask).sum() / mask.sum()).backward()
    ```

    ## When it is intended

    Some policy losses use a fixed divisor, so that the weight of a token does not depend on the
    other samples. Divide by a constant that does not depend on the padding.

    ## Not detected

    Masks that are applied with `masked_fill`, `where` or an assignment, and masks with values other
    than 0 and 1, are not reported.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    """

    # `where` is the line of the mean.
    masked: str = ""  # line that applied the mask
    zeros: int = 0
    among: int = 0  # number of values in the mask

    def report(self) -> Finding:
        return finding(
            "info",
            f"The mean{at(self.where)} divides by the number of all values, but the "
            f"mask{at(self.masked)} sets {self.zeros} of {self.among} to zero: the more values "
            "are masked, the less the others count.",
            cause="mean over masked values",
            advice="Divide the sum by the number of values that the mask keeps: "
            "(loss * mask).sum() / mask.sum().",
            where=self.where,
            nodes=self.nodes,
        )


@rule("info", reads="end")
@immutable
class MeanOfUnequalMeans(Event):
    """The batches of one step have very different numbers of targets, and each batch contributes
    the mean over its own targets.

    ## Why it matters

    Each batch has the same weight, so a target in a small batch weighs more than one in a large
    batch. With gradient accumulation over sequences of different lengths, the result differs from
    training with a single large batch.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for count in (2, 20):
            x, target = torch.randn(count, 4), torch.arange(count) % 3
            loss = F.cross_entropy(model(x), target)  # <- reported
            (loss / 2).backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for count in (2, 20):
            x, target = torch.randn(count, 4), torch.arange(count) % 3
            loss = F.cross_entropy(model(x), target, reduction="sum")
            (loss / 22).backward()
        optimizer.step()
    ```

    ## When it is intended

    All sequences may be meant to have the same weight, regardless of their lengths.

    ## Not detected

    Only `cross_entropy` and `nll_loss` with class indices are checked, and only batches of which
    one has at least twice as many targets as another.

    ## See also

    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    function: str = ""  # "cross_entropy"
    calls: int = 0
    least: int = 0  # smallest number of targets that one call averages
    most: int = 0

    def report(self) -> Finding:
        times = self.most / max(self.least, 1)  # a file may say 0
        return finding(
            "info",
            f"{self.function}{at(self.where)} averages {self.least} to {self.most} targets in "
            f"the {count_text(self.calls, 'backward')} before one step: each batch weighs the "
            f"same, so a target in the smallest weighs {times:.3g} times as "
            "much as one in the largest.",
            cause="mean of means over unequal numbers of targets",
            advice="Pass reduction='sum', and divide by the number of targets of all batches of "
            "the step.",
            where=self.where,
        )
