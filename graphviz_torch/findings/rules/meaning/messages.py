"""Rules about the messages of graph networks."""

from __future__ import annotations

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ...rule import finding, rule
from ...words import at


@rule("warning")
@immutable
class ReturnedMessages(Event):
    """A graph network adds up messages at the nodes that sent them, not at their neighbors.

    ## Why it matters

    The index of the edges' sources reads the features of the nodes, and the index of their targets
    should add them up. If the same index does both, each node gets its own features, multiplied by
    the number of its edges, and nothing from its neighbors.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    layer = nn.Linear(4, 8)
    source, target = torch.randint(0, 10, (2, 30))
    with record(layer) as recording:
        h = layer(torch.randn(10, 4))
        received = torch.zeros(10, 8).index_add(0, source, h[source])  # <- reported
        received.square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    layer = nn.Linear(4, 8)
    source, target = torch.randint(0, 10, (2, 30))
    with record(layer) as recording:
        h = layer(torch.randn(10, 4))
        received = torch.zeros(10, 8).index_add(0, target, h[source])
        received.square().mean().backward()
    ```

    ## When it is intended

    A program may multiply the features of each node by its number of edges in this way. A product
    with the degree is faster.

    ## Not detected

    Both indices must be the same tensor, or the same row of it. Messages that also contain features
    of edges are checked only if the index is a row of a tensor with two rows.

    ## See also

    - [index_add](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_add_.html)
    - [PyTorch Geometric: message passing](https://pytorch-geometric.readthedocs.io/en/latest/tutorial/create_gnn.html)
    """

    function: str = ""  # "index_add"
    read: str = ""  # line that reads the features of the sources

    def report(self) -> Finding:
        return finding(
            "warning",
            f"{self.function}{at(self.where)} adds up messages by the index that also read "
            f"them{at(self.read)}: each node gets its own features, and none of its neighbors.",
            cause="messages that return to their sources",
            advice="Read the features by the index of the sources, and add them up by the index of "
            "the targets.",
            where=self.where,
            nodes=self.nodes,
        )
