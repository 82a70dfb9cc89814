"""Rules about layers that share their weights."""

from __future__ import annotations

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ...rule import finding, rule
from ...words import at


@rule("info", reads="end")
@immutable
class RepeatedLayer(Event):
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

    # `where` is the line that creates the list.
    container: str = ""  # path of the list
    count: int = 0  # number of times that the list contains the module
    layer: str = ""  # class of the module

    def report(self) -> Finding:
        name = self.container or "The model"
        return finding(
            "info",
            f"{name}{f', set{at(self.where)},' if self.where else ''} contains one {self.layer} "
            f"{self.count} times: its layers share one set of weights.",
            cause="one layer several times",
            advice="Create a layer for each entry: [Layer(...) for _ in range(n)], or "
            "copy.deepcopy(layer).",
            where=self.where,
        )
