"""Rules about derivatives with respect to inputs, such as forces."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event
from ...graph.immutable import immutable
from ..rule import finding, rule
from ..words import at


@rule("warning", reads="end")
@immutable
class IncompleteDerivative(Event):
    """`autograd.grad` differentiates with respect to an input that the result also depends on
    through a detached value, so the derivative lacks a part.

    ## Why it matters

    Forces are the negative derivative of an energy with respect to positions. If a value that was
    computed from the positions is detached, the force is not the derivative of the energy: the
    model is trained towards forces that do not conserve its energy.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    with record(model) as recording:
        x = torch.randn(16, 1, requires_grad=True)
        energy = model(torch.cat([x, x.square().detach()], 1))  # <- reported
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        (force.square().mean() + energy.mean()).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    with record(model) as recording:
        x = torch.randn(16, 1, requires_grad=True)
        energy = model(torch.cat([x, x.square()], 1))
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        (force.square().mean() + energy.mean()).backward()
    ```

    ## When it is intended

    A partial derivative may be wanted, with the other value kept constant. A detached maximum or
    minimum, which often only scales the values, is not reported.

    ## Not detected

    Only derivatives with respect to leaves that are no parameters, and that no optimizer holds, are
    checked, and only values that were cut by `detach()`, `.data` or `no_grad`.

    ## See also

    - [torch.autograd.grad](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)
    """

    # `where` is the line of the cut; `nodes` use its result.
    how: str = ""  # "detach"
    label: str = ""  # name of the variable whose value was cut
    called: str = ""  # line that calls autograd.grad

    def report(self) -> Finding:
        name = self.label or "a value"
        return finding(
            "warning",
            f"The derivative{at(self.called)} lacks a part: {name}, computed from the same input, "
            f"is cut by {self.how}{at(self.where)}, so it counts as a constant.",
            cause=f"a derivative through {self.how}",
            advice=f"Remove the {self.how}{at(self.where)}.",
            where=self.where,
            nodes=self.nodes,
        )
