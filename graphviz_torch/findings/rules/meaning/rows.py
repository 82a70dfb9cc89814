"""Rules about the rows of the data that a batch consists of."""

from __future__ import annotations

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ...rule import finding, rule
from ...words import at


@rule("warning", reads="end")
@immutable
class UnpairedRows(Event):
    """Two different indices choose the inputs and the targets of a loss, so the rows do not belong
    together.

    ## Why it matters

    Each prediction is compared with the target of another sample. The best that the model can learn
    is a constant prediction, such as the mean of the targets.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for order in torch.randperm(64).split(16):
            loss = nn.functional.mse_loss(model(x[order]), y[:16])  # <- reported
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for order in torch.randperm(64).split(16):
            loss = nn.functional.mse_loss(model(x[order]), y[order])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## When it is intended

    Targets may be shuffled on purpose, to show the loss of a model without information. A sample
    may also have another sample as its target, such as its nearest neighbor.

    ## Not detected

    Rows are compared only if slices or tensors of indices choose them from two tensors of the same
    length, and they are reported after two steps. Indices that differ by a constant, as in a
    forecast, are not reported.

    ## See also

    - [TensorDataset](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.TensorDataset)
    """

    target: str = ""  # line that chooses the rows of the target
    inputs: str = ""  # line that chooses the rows of the input
    count: int = 0  # number of steps in which the rows differ

    def report(self) -> Finding:
        chosen = f"the rows of the target{at(self.target)}"
        if self.target == self.inputs:
            chosen = "the rows of the target"
        return finding(
            "warning",
            f"In {self.count} steps, {chosen} and those of the input{at(self.inputs)} have "
            f"different indices: the loss{at(self.where)} compares each prediction with the target "
            "of another sample.",
            cause="inputs and targets of different rows",
            advice="Choose the rows of both by the same index: x[index] and y[index].",
            where=self.where,
        )
