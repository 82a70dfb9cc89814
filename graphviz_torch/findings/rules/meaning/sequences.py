"""Rules about sequences: the last step, and encodings of positions."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ...axes import attribute, axis_reading, sample_axes, shape_of
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at

_PARTS = ("slice", "split", "split_with_sizes", "chunk", "narrow", "view", "index")


@immutable
class LastStep(Event):
    """A read of the last step of padded sequences, or of a bidirectional layer's result."""

    function: str = ""  # "lstm", "pad_packed_sequence"
    shorter: int = 0  # number of sequences that end before the last step; 0 if none is padded


@rule("warning", of=(LastStep,))
def last_step(reading: Reading) -> Iterator[Finding]:
    """The last step of a recurrent layer's result does not summarize the sequence: it is padding,
    or the reverse direction has read one step only.

    ## Why it matters

    For each step, a bidirectional layer returns the state of the forward direction, which has read
    the sequence up to this step, and that of the reverse direction, which has read it from the end
    back to this step.

    At the last step, the reverse direction has read a single step, so half of the features ignore
    the rest of the sequence.

    After `pad_packed_sequence`, the result at the last step is 0 for each sequence that is shorter
    than the longest.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    lstm, head = nn.LSTM(4, 8, batch_first=True, bidirectional=True), nn.Linear(16, 1)
    with record(nn.ModuleList([lstm, head])) as recording:
        output, (h, c) = lstm(torch.randn(3, 5, 4))
        head(output[:, -1]).square().mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    lstm, head = nn.LSTM(4, 8, batch_first=True, bidirectional=True), nn.Linear(16, 1)
    with record(nn.ModuleList([lstm, head])) as recording:
        output, (h, c) = lstm(torch.randn(3, 5, 4))
        head(torch.cat([h[-2], h[-1]], 1)).square().mean().backward()
    ```

    ## When it is intended

    A model may need the last step alone, for example to predict its label. The last step is not
    reported if the program also uses other steps, or takes only the features of one direction, as
    in `output[:, -1, :8]`.

    ## Not detected

    If the sequences are not packed, the layer reads their padding, which is not detected.

    ## See also

    - [torch.nn.LSTM](https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html)
    - [pad_packed_sequence](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_packed_sequence.html)
    """
    for event in reading.events(LastStep):
        users = [
            reading.graph.nodes[edge.target].operation
            for node in event.nodes
            for edge in reading.users[node]
        ]
        directions = all(user in _PARTS for user in users)  # takes the features of each direction
        if not users or (
            not event.shorter and (directions or _reads_further_steps(reading, event))
        ):
            continue
        if event.shorter:
            text = (
                f"The last step{at(event.where)} of the result of {event.function} is padding for "
                f"{event.shorter} sequences, which end earlier: their features are 0."
            )
            advice = "Use the last state that the layer returns, or gather the step at "
            advice += "lengths - 1 of each sequence."
        else:
            text = (
                f"At the last step{at(event.where)}, the reverse direction of {event.function} has "
                "read a single step, so half of the features ignore the rest of the sequence."
            )
            advice = "Concatenate the last states of both directions, h[-2] and h[-1], or use a "
            advice += "mean over the steps."
        yield finding(
            "warning",
            text,
            cause="the last step is padding" if event.shorter else "half of a bidirectional result",
            advice=advice,
            where=event.where,
            nodes=event.nodes,
        )


def _reads_further_steps(reading: Reading, event: LastStep) -> bool:
    """Return True if the program also uses other steps of the result."""
    read = [edge for node in event.nodes for edge in reading.inputs[node]]
    return any(
        other.output_nr == edge.output_nr and other.target not in event.nodes
        for edge in read
        for other in reading.users[edge.source]
    )


@immutable
class RowEncoding(Event):
    """An addition of the first rows of a constant, in several calls.

    The shapes are (rows, columns, features) and (rows, 1, features).
    """


@rule("warning", reads="end", of=(RowEncoding, "slice"))
def positions_of_samples(reading: Reading) -> Iterator[Finding]:
    """An encoding of positions is added along the samples of the batch instead of along the
    sequence.

    ## Why it matters

    All positions of the first sample get the encoding of the first position, those of the second
    sample get that of the second position, and so on. The model cannot know the order of a
    sequence, and a prediction depends on the place of the sample in its batch.

    ## Example

    ```python
    import math
    import torch
    from torch import nn
    from graphviz_torch import record

    angles = torch.arange(20.0)[:, None] / 10000 ** (torch.arange(0, 8, 2) / 8)
    encoding = torch.cat([angles.sin(), angles.cos()], 1)[:, None]  # (positions, 1, features)
    body, head = nn.Linear(4, 8), nn.Linear(8, 3)
    with record(nn.ModuleList([body, head])) as recording:
        for _ in range(2):
            h = body(torch.randn(6, 5, 4))  # (samples, positions, features)
            h = (h + encoding[: h.size(0)]).relu().mean(1)  # <- reported
            nn.functional.cross_entropy(head(h), torch.arange(6) % 3).backward()
    ```

    ## Use instead

    ```python
    import math
    import torch
    from torch import nn
    from graphviz_torch import record

    angles = torch.arange(20.0)[:, None] / 10000 ** (torch.arange(0, 8, 2) / 8)
    encoding = torch.cat([angles.sin(), angles.cos()], 1)[None]  # (1, positions, features)
    body, head = nn.Linear(4, 8), nn.Linear(8, 3)
    with record(nn.ModuleList([body, head])) as recording:
        for _ in range(2):
            h = body(torch.randn(6, 5, 4))  # (samples, positions, features)
            h = (h + encoding[:, : h.size(1)]).relu().mean(1)
            nn.functional.cross_entropy(head(h), torch.arange(6) % 3).backward()
    ```

    ## When it is intended

    A program whose batches always contain the same samples, in the same order, may give each of
    them features of its own.

    ## Not detected

    The first dimension of the loss's input is taken for that of the samples. A loss whose input has
    samples and positions in one dimension is not checked.

    ## See also

    - [Attention is all you need](https://arxiv.org/abs/1706.03762)
    - [Tutorial with an encoding for (positions, samples, features)](https://docs.pytorch.org/tutorials/beginner/translation_transformer.html)
    """
    nodes = reading.graph.nodes
    found = [nodes[number] for event in reading.events(RowEncoding) for number in event.nodes]
    for part in reading.of_operations(("slice",)):
        source = [nodes[edge.source] for edge in reading.inputs[part.id]]
        users = [nodes[edge.target] for edge in reading.users[part.id]]
        shape, dim = shape_of(reading, part.id), attribute(part, "dim")
        if len(shape) == 3 and shape[1] == 1 and dim == "0" and source[0].leaf == "parameter":
            found += [user for user in users if user.operation == "add"]
    if not found:
        return
    axes = axis_reading(reading).axes
    samples = sample_axes(reading, axes)
    for node in found:
        own = axes[node.id]
        if len(own) == 3 and own[0] in samples and own[0]:
            shape = shape_of(reading, node.id)
            yield finding(
                "warning",
                f"add{at(node.where)} adds the first {shape[0]} rows of an encoding along "
                f"dimension 0 of {list(shape)}, the samples: all {shape[1]} positions of a sample "
                "get the same row.",
                cause="positions along the samples",
                advice="Give the encoding the shape (1, positions, features), and add its first "
                "x.size(1) positions.",
                where=node.where,
                nodes=(node.id,),
            )
