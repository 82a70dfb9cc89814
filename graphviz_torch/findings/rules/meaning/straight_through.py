"""Rules about straight-through estimators."""

from __future__ import annotations

from typing import Literal

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ...rule import finding, rule
from ...words import at

# Fault of an estimator: its value is 2 x - q instead of q, or its gradient has the opposite sign.
EstimatorFault = Literal["value", "gradient"]


@rule("warning")
@immutable
class ReversedEstimator(Event):
    """A straight-through estimator subtracts the wrong operand, so its value or its gradient is
    wrong.

    ## Why it matters

    For a quantized value q of x, `x + (q - x).detach()` has the value q, and passes its gradient on
    to x. With `x + (x - q).detach()`, the value is 2 x - q, which is not quantized. With
    `q - x + x.detach()`, the gradient gets the opposite sign, and each step increases the loss.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, head = nn.Linear(4, 4), nn.Linear(4, 1)
    with record(nn.ModuleList([model, head])) as recording:
        x = model(torch.randn(8, 4))
        quantized = x + (x - torch.round(x)).detach()  # <- reported
        head(quantized).square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, head = nn.Linear(4, 4), nn.Linear(4, 1)
    with record(nn.ModuleList([model, head])) as recording:
        x = model(torch.randn(8, 4))
        quantized = x + (torch.round(x) - x).detach()
        head(quantized).square().mean().backward()
    ```

    ## When it is intended

    Sums of other tensors, such as the extrapolation `x + (x - previous).detach()`, are not
    reported: one operand must be the result of a step function, such as round, or of a lookup.

    ## Not detected

    A quantized value that was computed without a gradient is not recognized.

    ## See also

    - [Estimating gradients through stochastic neurons](https://arxiv.org/abs/1308.3432)
    - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)
    """

    what: EstimatorFault = "value"

    def report(self) -> Finding:
        if self.what == "value":
            text = "returns 2 x - q instead of q: it adds the difference with the opposite sign."
        else:
            text = "passes the opposite of its gradient on to x, because it subtracts x undetached."
        return finding(
            "warning",
            f"The straight-through estimator{at(self.where)} {text}",
            cause=f"a straight-through estimator with the wrong {self.what}",
            advice="Write x + (q - x).detach(), where q is the quantized x.",
            where=self.where,
            nodes=self.nodes,
        )
