"""Rules about layers that share their weights."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import RepeatedLayer
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at


@rule("info", reads="end", of=(RepeatedLayer,))
def repeated_layer(reading: Reading) -> Iterator[Finding]:
    """A list of layers contains a single layer several times, so all its layers share one set of
    weights.

    ## Why it matters

    `[layer] * 6` and `ModuleList([layer for _ in range(6)])` do not copy the layer. The model has
    the depth of six layers and the parameters of one.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(4, 4)] * 3)  # <- reported

        def forward(self, x):
            return self.layers(x)


    model = Net()
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x):
            return self.layers(x)


    model = Net()
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
    ```

    ## When it is intended

    Some models share the weights of all layers on purpose, such as ALBERT and recurrent networks
    over depth.

    ## Not detected

    Layers that are shared between different lists, and lists with several different layers, are not
    reported.

    ## See also

    - [ModuleList](https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html)
    """
    for event in reading.events(RepeatedLayer):
        name = event.container or "The model"
        yield finding(
            "info",
            f"{name}{f', set{at(event.where)},' if event.where else ''} contains one {event.layer} "
            f"{event.count} times: its layers share one set of weights.",
            cause="one layer several times",
            advice="Create a layer for each entry: [Layer(...) for _ in range(n)], or "
            "copy.deepcopy(layer).",
            where=event.where,
        )
