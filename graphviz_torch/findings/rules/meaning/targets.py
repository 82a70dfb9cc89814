"""Rules about targets that are ignored, constant, padding, or out of a loss's range."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import LossTarget, UsedPadding
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at

_CLASS_LOSSES = ("cross_entropy", "nll_loss")
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


@rule("warning", reads="end", of=(LossTarget,))
def target_out_of_range(reading: Reading) -> Iterator[Finding]:
    """A loss got values outside of the range that it expects, such as targets of 0 and 1 instead of
    1 and -1, or scores instead of log-probabilities. PyTorch raises no error.

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


@rule("warning", reads="end", of=(LossTarget,), advanced=True)
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


@rule("warning", reads="end", of=(UsedPadding,))
def padding_in_targets(reading: Reading) -> Iterator[Finding]:
    """A loss counts targets that are padding.

    ## Why it matters

    Sequences of different lengths are padded to the same length. If the loss does not ignore the
    padding, most of its gradient may teach the model to predict padding, and the loss looks smaller
    than it is.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20))
    tokens = torch.randint(1, 20, (4, 9))
    tokens[:, 6:] = 0
    with record(model) as recording:
        scores = model(tokens[:, :-1])
        F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20))
    tokens = torch.randint(1, 20, (4, 9))
    tokens[:, 6:] = 0
    with record(model) as recording:
        scores, target = model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        F.cross_entropy(scores, target, ignore_index=0).backward()
    ```

    ## When it is intended

    If the token that ends a sequence is also used as padding, its first occurrence in each row must
    be counted. Nothing is reported if each row has at most one such target.

    ## Not detected

    A token is recognized as padding if it is the embedding's `padding_idx`, or if at least two rows
    end with repetitions of the token and it occurs nowhere else. Losses with weights, and losses
    with `reduction="none"`, are not reported, because the program may mask them.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    - [Embedding](https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html)
    """
    for event in reading.events(UsedPadding):
        if event.function in _CLASS_LOSSES:
            yield finding(
                "warning",
                f"{event.function}{at(event.where)} counts {event.count} of {event.among} targets "
                f"that are {event.token}, the padding of the tokens{at(event.embedded)}.",
                cause="padding counted as targets",
                advice=f"Pass ignore_index={event.token}, or set the targets of padding to -100.",
                where=event.where,
                nodes=event.nodes,
            )


@rule("info", reads="end", of=(UsedPadding,))
def attention_to_padding(reading: Reading) -> Iterator[Finding]:
    """An attention layer or function without a mask attends to padding.

    ## Why it matters

    The result for a sequence then depends on the number of padding tokens, that is, on the longest
    sequence of its batch. Predictions for a single sequence differ from those in a batch.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    embedding = nn.Embedding(20, 8, padding_idx=0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    tokens = torch.randint(1, 20, (4, 9))
    tokens[:, 6:] = 0
    with record(nn.ModuleList([embedding, layer])) as recording:
        h = layer(embedding(tokens))  # <- reported
        h[:, 0].square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    embedding = nn.Embedding(20, 8, padding_idx=0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    tokens = torch.randint(1, 20, (4, 9))
    tokens[:, 6:] = 0
    with record(nn.ModuleList([embedding, layer])) as recording:
        h = layer(embedding(tokens), src_key_padding_mask=tokens == 0)
        (h[:, 0] * torch.randn(4, 8)).mean().backward()
    ```

    ## When it is intended

    Some models learn to ignore padding by themselves.

    ## Not detected

    Only `scaled_dot_product_attention` and `nn.MultiheadAttention` are checked. A causal attention
    is not reported, because a token attends only to tokens before it.

    ## See also

    - [MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html)
    """
    for event in reading.events(UsedPadding):
        if event.function not in _CLASS_LOSSES:
            yield finding(
                "info",
                f"{event.function}{at(event.where)} has no mask, and attends to the padding of the "
                f"tokens{at(event.embedded)}: {event.count} of {event.among} are {event.token}.",
                cause="attention without a mask of the padding",
                advice="Pass a mask of the padding, such as key_padding_mask or attn_mask.",
                where=event.where,
                nodes=event.nodes,
            )
