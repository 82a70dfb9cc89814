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
    """The inputs and the targets of a loss are rows of the data that two different indices choose.

    ## Why it matters

    Each prediction is compared with the target of another sample. The loss falls to that of a
    constant prediction, and no further.

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

    Targets that are shuffled on purpose show how well a model does without information.

    ## Not detected

    Rows are compared if they are chosen from two tensors of the same length, by slices or by
    tensors of indices, in two steps. Indices at a constant distance, as in a forecast, are not
    reported.

    ## See also

    - [TensorDataset](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.TensorDataset)
    """

    target: str = ""  # line that chooses the rows of the target
    inputs: str = ""  # line that chooses the rows of the input
    count: int = 0  # number of steps in which the rows differ

    def report(self) -> Finding:
        lines = f"{at(self.target)} by other indices than those of the input{at(self.inputs)}"
        return finding(
            "warning",
            f"The rows of the target{at(self.where)} are chosen{lines}, in {self.count} steps: "
            "each prediction is compared with the target of another sample.",
            cause="inputs and targets of different rows",
            advice="Choose the rows of both by the same index: x[index] and y[index].",
            where=self.where,
        )
