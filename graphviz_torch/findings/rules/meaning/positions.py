"""Rules about encodings of positions."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ...axes import attribute
from ...graph_reading import Reading
from ...rule import finding, rule
from ...samples import axis_reading, sample_axes, shape_of
from ...words import at


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
