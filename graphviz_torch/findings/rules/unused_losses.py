"""Rules about losses that are computed for nothing."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event
from ...graph.immutable import immutable
from ..rule import finding, rule
from ..words import at


@rule("warning", reads="end")
@immutable
class UnusedLoss(Event):
    """A loss is computed in each step and its value is read, but no backward uses it.

    ## Why it matters

    The loss trains nothing. Often the program forgets to add it to the other terms, or an option
    that adds it is off by default.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for step in range(3):
            scores = model(torch.randn(8, 4))
            loss, balance_loss = scores.square().mean(), scores.softmax(-1).mean(0).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item(), balance_loss.item())  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for step in range(3):
            scores = model(torch.randn(8, 4))
            loss, balance_loss = scores.square().mean(), scores.softmax(-1).mean(0).square().sum()
            optimizer.zero_grad()
            (loss + balance_loss).backward()
            optimizer.step()
            print(loss.item(), balance_loss.item())
    ```

    ## When it is intended

    A loss may be computed only for a log. Under `torch.no_grad()`, it is not reported. A loss that
    only compares results on which the used loss depends, too, such as a cross entropy without label
    smoothing, is reported as a note.

    ## Not detected

    A loss is recognized by the name of its variable, which contains "loss", "penalty" or "aux". A
    loss whose value is not read is not reported, nor one that shares no operation with the loss
    that is used, such as a validation loss.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """

    # `where` is the line that reads the value.
    label: str = ""  # name of the variable
    made: str = ""  # line that computes the loss
    steps: int = 0
    compares: bool = (
        False  # True for a loss function of results on which the used loss depends, too
    )

    def report(self) -> Finding:
        return finding(
            "info" if self.compares else "warning",
            f"{self.label}{at(self.made)} is read{at(self.where)} in {self.steps} steps, but no "
            "backward uses it: it trains nothing.",
            cause="an unused loss",
            advice=f"Add {self.label} to the loss on which backward is called. If it is only "
            "logged, compute it under torch.no_grad().",
            where=self.where,
        )
