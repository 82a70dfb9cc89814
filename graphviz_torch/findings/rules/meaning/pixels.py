"""Rules about the scale of the input."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at

_NORMS = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_layer_norm"}
_NORMS |= {"native_group_norm"}


@immutable
class UnscaledPixels(Event):
    """A call of a layer whose input consists of whole numbers from 0 to at most 255."""

    largest: int = 0  # the largest number


@rule("info", of=(UnscaledPixels,))
def unscaled_pixels(reading: Reading) -> Iterator[Finding]:
    """The first layer gets whole numbers up to 255, such as the pixels of an image that were not
    scaled.

    ## Why it matters

    The initial weights of a layer are chosen for inputs of about unit variance. With pixels up to
    255, the scores and the gradients of the first steps are about a hundred times too large: ReLUs
    die, and the usual learning rates are too large.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    images = torch.randint(256, (4, 3, 8, 8)).float()
    model = nn.Conv2d(3, 2, 3)
    with record(model) as recording:
        model(images).square().mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    images = torch.randint(256, (4, 3, 8, 8)).float() / 255
    model = nn.Conv2d(3, 2, 3)
    with record(model) as recording:
        model(images).square().mean().backward()
    ```

    ## When it is intended

    Other whole numbers, such as counts, may have a range up to 255. A layer whose result a batch,
    layer or group norm normalizes is not reported, because the norm removes the scale.

    ## Not detected

    Pixels that were scaled twice, and those from which only the mean was subtracted, are not
    reported.

    ## See also

    - [torchvision: ToDtype, with scale=True](https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.v2.ToDtype.html)
    """
    for event in reading.events(UnscaledPixels):
        users = [
            reading.graph.nodes[edge.target].operation
            for node in event.nodes
            for edge in reading.users[node]
        ]
        if users and not any(user in _NORMS for user in users):
            yield finding(
                "info",
                f"The input of the layer{at(event.where)} consists of whole numbers up to "
                f"{event.largest}, like the pixels of an image that were not scaled.",
                cause="pixels that were not scaled",
                advice="Divide the pixels by 255, or subtract their mean and divide by their "
                "standard deviation.",
                where=event.where,
                nodes=event.nodes,
            )
