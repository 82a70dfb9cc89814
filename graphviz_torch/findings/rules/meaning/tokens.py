"""Rules about the tokens of a batch: padding, the shift of the targets, and the causal mask."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Literal

from ....graph import Finding, Node
from ....graph.events import Event, TokenShift
from ....graph.immutable import immutable
from ....graph.nodes import SAME_VALUES
from ...axes import attribute, number
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at, operation_text

# Use of padding: the loss uses results at padding, attention attends to it, an inverted mask hides
# all other tokens, or only padding gets a gradient.
PaddingUse = Literal["results", "attended", "inverted", "only"]

# Operations between the product of queries and keys and the softmax that mask no score.
_SCALES_SCORES = SAME_VALUES | {"mul", "div"}


@rule("warning", reads="end", of=(TokenShift,), also=("experiment",))
def future_leak(reading: Reading) -> Iterator[Finding]:
    """An output changes if a later position of the input changes, although the model predicts the
    next position.

    ## Why it matters

    In training, the model can read the answer from its input, and the loss becomes very low. In
    generation, later positions do not exist yet, and the model fails. Usually a causal mask is
    missing, or a convolution is padded on both sides.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
            self.mix = nn.Conv1d(8, 8, 3, padding=1)

        def forward(self, tokens):
            h = self.embed(tokens).transpose(1, 2)
            return self.out(self.mix(h).transpose(1, 2))  # <- reported


    model, tokens = Net(), torch.randint(20, (4, 10))
    with record(model, experiments=True) as recording:
        logits = model(tokens[:, :-1]).transpose(1, 2)
        F.cross_entropy(logits, tokens[:, 1:]).backward()
    findings = experiment(recording, "positions").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
            self.mix = nn.Conv1d(8, 8, 3)

        def forward(self, tokens):
            h = self.embed(tokens).transpose(1, 2)
            return self.out(self.mix(F.pad(h, (2, 0))).transpose(1, 2))


    model, tokens = Net(), torch.randint(20, (4, 10))
    with record(model, experiments=True) as recording:
        logits = model(tokens[:, :-1]).transpose(1, 2)
        F.cross_entropy(logits, tokens[:, 1:]).backward()
    findings = experiment(recording, "positions").findings
    ```

    ## When it is intended

    Some models, such as BERT, read the whole sequence on purpose. Their targets are not the next
    tokens, so nothing is reported.

    ## Not detected

    Leaks from positions that the experiment does not change are not detected.

    ## See also

    - [torch.nn.functional.scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
    - [Transformer masks](https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html)
    """
    for event in reading.events(TokenShift):
        if event.lag != 1 or not event.only:
            continue
        name, where, nodes = event.attention, event.attended, event.nodes
        if not name:
            softmax = _unmasked_softmax(reading, event.length)
            if softmax is None:
                continue
            name, where, nodes = "softmax", softmax.where, (softmax.id,)
        yield finding(
            "warning",
            f"{name}{at(where)} has no mask and is not causal, although the targets of "
            f"{event.function}{at(event.where)} are the next tokens: each position can read its "
            "answer from the next one.",
            cause="attention without a causal mask",
            advice="Pass is_causal=True, or mask the scores of later positions with -inf.",
            where=where,
            nodes=nodes,
        )


def _unmasked_softmax(reading: Reading, length: int) -> Node | None:
    """Return a softmax over the scores of all pairs of tokens that no operation masks.

    Args:
        reading: the graph.
        length: number of tokens in a row.
    """
    nodes = reading.graph.nodes
    for node in reading.of_operations(("softmax",)):
        meta, dim = reading.meta(node.id), number(node, "dim")
        if meta is None or len(meta.shape) < 3 or meta.shape[-2:] != (length, length):
            continue
        if dim not in (-1, len(meta.shape) - 1):
            continue
        before = node
        while len(edges := reading.inputs[before.id]) == 1:
            before = nodes[edges[0].source]
            if before.operation not in _SCALES_SCORES or attribute(before, "data"):
                break
        if before.operation == "bmm":
            return node
    return None


@rule("warning", reads="end", of=(TokenShift,), also=("experiment",))
def target_shift(reading: Reading) -> Iterator[Finding]:
    """The targets are the input tokens unshifted, or shifted by more than one position.

    ## Why it matters

    Without a shift, the model learns to copy its input; with a shift of two, it learns to skip a
    token. The loss falls in both cases, but the model generates nonsense.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment

    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    tokens = torch.randint(20, (4, 10))
    with record(model, experiments=True) as recording:
        F.cross_entropy(model(tokens).transpose(1, 2), tokens).backward()  # <- reported
    findings = experiment(recording, "positions").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment

    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    tokens = torch.randint(20, (4, 10))
    with record(model, experiments=True) as recording:
        F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:]).backward()
    findings = experiment(recording, "positions").findings
    ```

    ## When it is intended

    An autoencoder copies its input on purpose: `find` reports it as a note. `experiment` does not
    report it, because its outputs depend on all positions. A model that shifts the labels itself is
    not reported either.

    ## Not detected

    Targets other than tokens of an input are not checked.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    """
    events = reading.events(TokenShift)
    if any(event.lag == 1 for event in events):
        return  # the tokens of another embedding are those of the decoder
    for event in events:
        shift = "unshifted" if not event.lag else f"shifted by {event.lag} positions"
        yield finding(
            # An autoencoder copies its input on purpose.
            "warning" if event.lag else "info",
            f"The targets of {event.function}{at(event.where)} are the input tokens, {shift}"
            f"{': the loss can be 0 for a copy of the input' if not event.lag else ''}.",
            cause=f"targets {shift}",
            advice="Shift the targets by one position once: either in the data, or in front of the "
            "loss, with logits[:, :-1] and labels[:, 1:].",
            where=event.where,
            nodes=event.nodes,
        )


@immutable
class UsedPadding(Event):
    """Padding of a batch of tokens that a loss uses, or that attention attends to.

    `where` is the line of the call of attention. `nodes` has the node whose gradient shows the use.
    """

    use: PaddingUse = "results"
    function: str = ""  # "scaled_dot_product_attention"; "" without a call
    token: int = 0  # id of the padding token; -1 for sequences that pad_sequence padded
    count: int = 0  # number of tokens that are padding and used
    among: int = 0  # number of all tokens
    embedded: str = ""  # line that embeds the tokens, or that calls pad_sequence


@rule("warning", reads="end", of=(UsedPadding,))
def padding_in_targets(reading: Reading) -> Iterator[Finding]:
    """A loss uses the results of a model at positions that are padding.

    ## Why it matters

    Sequences of different lengths are padded to the same length. If the loss does not leave out the
    padding, most of its gradient may teach the model to predict padding, which is easy: the loss
    looks better than the model is.

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

    If the token that ends a sequence is also used as padding, a model must learn to predict its
    first occurrence. That prediction is the result at the token before it, and is not reported.

    Tokens that mark where the model should answer, such as masks at the end of a row, are no
    padding. They are not reported if each row has equally many, or if the loss uses exactly the
    results at these tokens.

    A model that should predict a fixed number of tokens, such as the pixels of an image, may have
    to predict repeated ones.

    ## Not detected

    The padding that `pad_sequence` adds is known if it is called in the process of the training,
    after the last backward. Another token at the end of a row is taken for padding if it is the
    embedding's `padding_idx`, or if at least two rows end with repetitions of it, not all of one
    length, and it occurs nowhere else.

    The results are those of the last linear layer or convolution before the loss. Results that are
    averaged over positions before that layer are not checked.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    - [Embedding](https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html)
    """
    for event in reading.events(UsedPadding):
        if event.use == "results" and event.nodes:
            user = _reduction(reading, event.nodes[0], event.among)
            added = event.token < 0  # by pad_sequence
            tokens = "The sequences were padded" if added else "Their tokens"
            value = "" if added else f" are {event.token}"
            ignored = "" if added else f"pass ignore_index={event.token} to the loss, "
            yield finding(
                "warning",
                f"The loss uses results at {event.count} of {event.among} positions that are "
                f"padding: {operation_text(user)}{at(user.where)} does not leave them out. "
                f"{tokens}{at(event.embedded)}{value}.",
                cause="loss on padding",
                advice=f"Leave out the padding: {ignored}set the targets of padding to -100, or "
                "multiply by a mask before the sum. To take the result of the last token, use the "
                "length of each row.",
                where=user.where,
                nodes=(*event.nodes, user.id),
            )


def _reduction(reading: Reading, node: int, positions: int) -> Node:
    """Return the first operation after a node whose result has fewer elements than positions.

    Args:
        reading: the graph.
        node: id of a node whose result has a row for each position.
        positions: number of positions.
    """
    nodes, ids = reading.graph.nodes, [node]
    for each in ids:
        meta = reading.meta(each)
        if meta is not None and prod(meta.shape) < positions:
            return nodes[each]
        ids += sorted({edge.target for edge in reading.users[each]} - set(ids))
    return nodes[node]


@rule("warning", reads="end", of=(UsedPadding,))
def attention_to_padding(reading: Reading) -> Iterator[Finding]:
    """Attention attends to padding: it has no mask, or its mask is inverted.

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

    A model may learn to ignore padding by itself. A missing mask is therefore reported as a note.

    ## Not detected

    Only `scaled_dot_product_attention` and `nn.MultiheadAttention` are checked for a missing mask.
    An inverted mask of another attention is reported if only the padding gets a gradient. Causal
    attention is not reported, because the padding follows all other tokens.

    ## See also

    - [MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html)
    """
    events = reading.events(UsedPadding)
    inverted = {event.embedded for event in events if event.use == "inverted"}
    for event in events:
        if event.use == "inverted":
            yield finding(
                "warning",
                f"The mask of {event.function}{at(event.where)} is inverted: it hides all tokens"
                f"{at(event.embedded)} but the padding, {event.count} of {event.among} that are "
                f"{event.token}.",
                cause="inverted mask of the padding",
                advice="Negate the mask: key_padding_mask is True for padding, and a boolean "
                "attn_mask of scaled_dot_product_attention is True for tokens to attend to.",
                where=event.where,
                nodes=event.nodes,
            )
        elif event.use == "only" and event.embedded not in inverted:
            yield finding(
                "warning",
                f"Of the tokens{at(event.embedded)}, only the padding gets a gradient: "
                f"{event.count} of {event.among} are {event.token}. The loss depends on no other "
                "token of this batch.",
                cause="inverted mask of the padding",
                advice="Negate the mask: key_padding_mask is True for padding, and a boolean "
                "attn_mask of scaled_dot_product_attention is True for tokens to attend to.",
                where=event.embedded,
                nodes=event.nodes,
            )
        elif event.use == "attended":
            yield finding(
                "info",
                f"{event.function}{at(event.where)} has no mask, and attends to the padding of the "
                f"tokens{at(event.embedded)}: {event.count} of {event.among} are {event.token}.",
                cause="attention without a mask of the padding",
                advice="Pass a mask of the padding, such as key_padding_mask or attn_mask.",
                where=event.where,
                nodes=event.nodes,
            )
