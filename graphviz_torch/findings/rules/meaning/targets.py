"""Targets: labels that a loss ignores, labels out of its range, and constant labels."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import LossTarget
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at

_SIGNS = ("targets of 1 and -1", "Pass 2 * target - 1 for targets of 0 and 1.")
# By loss: the targets that it takes, and advice on others.
_TAKES = {
    "cosine_embedding_loss": _SIGNS,
    "margin_ranking_loss": _SIGNS,
    "hinge_embedding_loss": _SIGNS,
    "soft_margin_loss": _SIGNS,
    "binary_cross_entropy_with_logits": (
        "targets from 0 to 1",
        "Pass (target + 1) / 2 for targets of -1 and 1; for classes, F.one_hot of them.",
    ),
    "poisson_nll_loss": ("counts, from 0 on", ""),
    "cross_entropy": (
        "class numbers, or probabilities that sum to 1",
        "Pass softmax(dim=1) of scores, as of a teacher's; for samples of several classes, use "
        "binary_cross_entropy_with_logits.",
    ),
    "kl_div": (
        "probabilities as its target",
        "Pass log_target=True for log-probabilities, or softmax of scores.",
    ),
}


@rule("warning", reads="end", of=(LossTarget,))
def target_out_of_range(reading: Reading) -> Iterator[Finding]:
    """A loss got values that it does not take, without an error of PyTorch: targets of 0 where it
    takes 1 and -1, or scores in place of log-probabilities.

    ## Why it matters

    PyTorch does not check the range of these targets. The loss falls, but to an optimum that
    is not the intended one.

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

    Label smoothing gives targets between 0 and 1. Losses of probabilities take them, so that they
    are not reported.

    ## Not detected

    Targets that PyTorch refuses by itself, such as a class that is too large.

    ## See also

    - [CosineEmbeddingLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CosineEmbeddingLoss.html)
    - [PoissonNLLLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.PoissonNLLLoss.html)
    """
    for event in reading.events(LossTarget):
        if event.what == "input" and not _is_probability(reading, event):
            yield finding(
                "warning",
                f"{event.function}{at(event.where)} takes log-probabilities, which are not above "
                f"0, and {event.count} of {event.among} in {_name(event)} are.",
                cause="scores where log-probabilities belong",
                advice="Pass it log_softmax of the scores, and leave the target as it is.",
                where=event.where,
            )
        if event.what != "outside" or event.function not in _TAKES:
            continue
        takes, advice = _TAKES[event.function]
        yield finding(
            "warning",
            f"{event.function}{at(event.where)} takes {takes}, and {event.count} of {event.among} "
            f"in {_name(event)} are others.",
            cause="targets that the loss does not take",
            advice=advice,
            where=event.where,
        )


@rule("warning", reads="end", of=(LossTarget,), advanced=True)
def ignored_targets(reading: Reading) -> Iterator[Finding]:
    """A loss ignores all targets of a batch: their mean is NaN, their sum 0.

    ## Why it matters

    `cross_entropy` and `nll_loss` leave out targets that equal `ignore_index` (-100 by default). If
    none is left, `reduction="mean"` divides by zero and the NaN spreads to every parameter in the
    next step; `reduction="sum"` returns 0 and the batch teaches nothing.

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

    A batch without a target, such as a prompt that fills the whole context, can occur now and then:
    skip it before the loss is computed.

    ## Not detected

    Targets that a mask of your own leaves out, and losses outside of `torch.nn.functional`.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    - [NLLLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html)
    """
    for event in reading.events(LossTarget):
        if event.what == "ignored":
            yield finding(
                "warning",
                f"{event.function}{at(event.where)} ignores all targets in {_name(event)}, in "
                f"{event.count} of {event.among} calls: a mean over none is NaN, and a sum is 0.",
                cause="ignored targets",
                advice="Leave out batches without a target, and look for code that sets labels "
                "to ignore_index.",
                where=event.where,
            )


@rule("info", reads="end", of=(LossTarget,))
def constant_targets(reading: Reading) -> Iterator[Finding]:
    """All targets of a loss are the same class, or the same number.

    ## Why it matters

    A batch with one class, or one number, teaches a constant. Labels that were not read, sorted
    data without shuffling, and a mask that covers all are common causes.

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

    The real and fake labels of a GAN, and one-class training.

    ## Not detected

    Batches that are almost constant.

    ## See also

    - [torch.utils.data: shuffling](https://docs.pytorch.org/docs/stable/data.html)
    """
    for event in reading.events(LossTarget):
        if event.what == "constant":
            yield finding(
                "info",
                f"All {event.count} targets in {_name(event)} that {event.function}"
                f"{at(event.where)} got are {event.index:g}.",
                cause="constant targets",
                where=event.where,
            )


def _is_probability(reading: Reading, event: LossTarget) -> bool:
    """Return True if the input is a probability, which `loss-input` reports."""
    node = None if event.target is None else event.target.node
    return node is not None and reading.graph.nodes[node].operation in ("softmax", "sigmoid")


def _name(event: LossTarget) -> str:
    label = event.target.label if event.target else ""
    return label or ("its input" if event.what == "input" else "the target")
