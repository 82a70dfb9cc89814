"""Rules about the last step of a sequence."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
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
