"""Rules about targets that are ignored, constant, or out of a loss's range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ....graph import Finding, Node, Operand
from ....graph.events import Event
from ....graph.immutable import immutable
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at
from ..losses import maker_of_first_input

# Problem of a loss: its targets are ignored, constant, out of range or the blank of CTC; its input
# is out of range; or the activation before the loss cannot return the targets.
TargetKind = Literal["ignored", "constant", "outside", "input", "unreachable", "blank"]

_SIGNS = ("targets of 1 and -1", "Pass 2 * target - 1 for targets of 0 and 1.")
# Loss -> the targets that the loss takes, and advice if it gets other targets.
_TAKES = {
    "cosine_embedding_loss": _SIGNS,
    "margin_ranking_loss": _SIGNS,
    "hinge_embedding_loss": _SIGNS,
    "soft_margin_loss": _SIGNS,
    "binary_cross_entropy_with_logits": (
        "targets from 0 to 1",
        "Pass (target + 1) / 2 for targets of -1 and 1; pass F.one_hot(classes) for class indices.",
    ),
    "poisson_nll_loss": ("counts, which are at least 0", ""),
    "cross_entropy": (
        "class indices, or probabilities that sum to 1",
        "Pass softmax(dim=1) of scores, such as a teacher's. If a sample may have several "
        "classes, use binary_cross_entropy_with_logits.",
    ),
    "kl_div": (
        "probabilities as its target",
        "Pass log_target=True if the target is log-probabilities, or pass softmax of scores.",
    ),
}


@immutable
class LossTarget(Event):
    """A loss with wrong operands.

    Its targets are all ignored, are all of one class, or are out of range; or its input is out of
    range.
    """

    function: str = ""  # "cross_entropy"
    what: TargetKind = "outside"
    target: Operand | None = None
    index: float = 0  # class index of the target, or value of a constant target
    count: int = 0  # number of wrong targets; for ignored targets, number of calls of the loss
    among: int = 0  # number of all targets; for ignored targets, number of all calls


@rule("warning", reads="end", of=(LossTarget,))
def target_out_of_range(reading: Reading) -> Iterator[Finding]:
    """A loss got values outside of the range that it expects, such as targets of 0 and 1 instead of
    1 and -1, scores instead of log-probabilities, or the blank of CTC. PyTorch raises no error.

    ## Why it matters

    PyTorch does not check the range of these values. The loss falls, but towards an optimum that is
    not the intended one.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 4)
    with record(model) as recording:
        same = torch.randint(2, (8,))
        one, other = model(torch.randn(8, 6)), model(torch.randn(8, 6))
        F.cosine_embedding_loss(one, other, same).backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 4)
    with record(model) as recording:
        same = torch.randint(2, (8,))
        one, other = model(torch.randn(8, 6)), model(torch.randn(8, 6))
        F.cosine_embedding_loss(one, other, 2 * same - 1).backward()
    ```

    ## When it is intended

    Label smoothing yields targets between 0 and 1. They are not reported for losses that take
    probabilities as targets.

    ## Not detected

    Targets for which PyTorch raises an error, such as a class index that is too large, are reported
    as `exception`.

    ## See also

    - [CosineEmbeddingLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CosineEmbeddingLoss.html)
    - [PoissonNLLLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.PoissonNLLLoss.html)
    """
    for event in reading.events(LossTarget):
        if event.what == "input" and not _is_probability(reading, event):
            yield finding(
                "warning",
                f"{event.function}{at(event.where)} takes log-probabilities, which are at most "
                f"0, but {event.count} of {event.among} values in {_name(event)} are above 0.",
                cause="scores where log-probabilities belong",
                advice="Pass log_softmax of the scores; the target may still be probabilities.",
                where=event.where,
            )
        if event.what == "blank":
            yield finding(
                "warning",
                f"{event.count} of {event.among} targets in {_name(event)} that {event.function}"
                f"{at(event.where)} got are the class of the blank, which is no target: the model "
                "learns to return nothing for it.",
                cause="targets that are the blank",
                advice="Number the classes of the targets from 1, or pass blank= a class that is "
                "not among them.",
                where=event.where,
            )
        if event.what != "outside" or event.function not in _TAKES:
            continue
        takes, advice = _TAKES[event.function]
        yield finding(
            "warning",
            f"{event.function}{at(event.where)} takes {takes}, but {event.count} of "
            f"{event.among} values in {_name(event)} are not.",
            cause="targets that the loss does not take",
            advice=advice,
            where=event.where,
        )


@rule(
    "warning",
    reads="end",
    of=(LossTarget,),
    advanced=True,
    caused_by=("nonfinite-value",),
)
def ignored_targets(reading: Reading) -> Iterator[Finding]:
    """A loss ignores all targets of a batch, so its mean is NaN and its sum is 0.

    ## Why it matters

    `cross_entropy` and `nll_loss` ignore targets that equal `ignore_index` (-100 by default). If
    all are ignored, `reduction="mean"` divides by zero, and the next step spreads the NaN to all
    parameters. `reduction="sum"` returns 0, so the batch trains nothing.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        labels = torch.full((8,), -100)
        scores = model(torch.randn(8, 6))
        F.cross_entropy(scores, labels, reduction="sum").backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        labels = torch.full((8,), -100)
        labels[4:] = torch.arange(4) % 3
        scores = model(torch.randn(8, 6))
        F.cross_entropy(scores, labels, reduction="sum").backward()
    ```

    ## When it is intended

    A batch without a target can occur occasionally, for example if a prompt fills the whole
    context. Skip such a batch before the loss is computed.

    ## Not detected

    Targets that the program's own mask ignores, and losses outside of `torch.nn.functional`, are
    not checked.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    - [NLLLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html)
    """
    for event in reading.events(LossTarget):
        if event.what == "ignored":
            yield finding(
                "warning",
                f"{event.function}{at(event.where)} ignores all targets in {_name(event)}, in "
                f"{event.count} of {event.among} calls: the mean of no terms is NaN, and their "
                "sum is 0.",
                cause="ignored targets",
                advice="Skip batches without a target, and look for code that sets labels to "
                "ignore_index.",
                where=event.where,
            )


@rule("info", reads="end", of=(LossTarget,))
def constant_targets(reading: Reading) -> Iterator[Finding]:
    """All targets of a loss are the same class or the same number.

    ## Why it matters

    If all targets are equal, the model learns to predict a constant. Common causes are labels that
    were not read, sorted data without shuffling, and a mask that covers everything.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        labels = torch.zeros(16, dtype=torch.long)
        F.cross_entropy(model(torch.randn(16, 6)), labels).backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        labels = torch.arange(16) % 3
        F.cross_entropy(model(torch.randn(16, 6)), labels).backward()
    ```

    ## When it is intended

    The real and fake labels of a GAN are constant, and so are the labels of one-class training.

    ## Not detected

    Batches whose targets are almost constant are not reported.

    ## See also

    - [torch.utils.data: shuffling](https://docs.pytorch.org/docs/stable/data.html)
    """
    for event in reading.events(LossTarget):
        if event.what == "constant":
            yield finding(
                "info",
                f"{event.function}{at(event.where)} got {event.count} targets in {_name(event)}, "
                f"and all of them are {event.index:g}.",
                cause="constant targets",
                where=event.where,
            )


def _is_probability(reading: Reading, event: LossTarget) -> bool:
    """Return True if the input consists of probabilities, which the rule `loss-input` reports."""
    node = None if event.target is None else event.target.node
    return node is not None and reading.graph.nodes[node].operation in ("softmax", "sigmoid")


def _name(event: LossTarget) -> str:
    label = event.target.label if event.target else ""
    return label or ("its input" if event.what == "input" else "the target")


_RANGE_TEXTS = {
    "sigmoid": "between 0 and 1",
    "softmax": "between 0 and 1",
    "tanh": "between -1 and 1",
    "relu": "of at least 0",
}


@rule("warning", reads="end", of=(LossTarget,))
def unreachable_targets(reading: Reading) -> Iterator[Finding]:
    """The activation before a regression loss cannot return the targets: it is a sigmoid, a tanh
    or a ReLU, and targets are outside of its range.

    ## Why it matters

    The loss cannot become small for these targets. The activation saturates at the end of its
    range, or a ReLU is driven below zero, where its gradient is zero.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    x, target = torch.randn(8, 4), 10 * torch.rand(8, 1)
    with record(model) as recording:
        F.mse_loss(model(x), target).backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    x, target = torch.randn(8, 4), 10 * torch.rand(8, 1)
    with record(model) as recording:
        F.mse_loss(model(x), target).backward()
    ```

    ## When it is intended

    A few outliers may be outside of the range on purpose. Clamp them.

    ## Not detected

    Losses that the program computes itself are not checked. Neither are activations whose result is
    scaled before the loss.

    ## See also

    - [MSELoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html)
    - [Sigmoid](https://docs.pytorch.org/docs/stable/generated/torch.nn.Sigmoid.html)
    """
    for event in reading.events(LossTarget):
        if event.what != "unreachable":
            continue
        maker = _activation(reading, event)
        name = maker.title if maker is not None else "activation"
        yield finding(
            "warning",
            f"{event.count} of {event.among} targets in {_name(event)} that {event.function}"
            f"{at(event.where)} got are outside of the range of {name}"
            f"{at(maker.where) if maker is not None else ''}, whose results are "
            f"{_RANGE_TEXTS.get(name, 'bounded')}.",
            cause="targets that the activation cannot reach",
            advice="Scale the targets to this range, or leave out the activation.",
            where=event.where,
        )


def _activation(reading: Reading, event: LossTarget) -> Node | None:
    """Return the activation before the loss at an event's line; None if there are several."""
    found = [
        maker
        for node in reading.of_operations((event.function,))
        if node.where == event.where and (maker := maker_of_first_input(reading, node))
    ]
    return found[0] if len(found) == 1 and found[0].title in _RANGE_TEXTS else None
