"""Rules about derivatives with respect to inputs, such as forces."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event, IneffectiveCall
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

    A partial derivative may be wanted, with the other value kept constant, as in relevance
    propagation. A detached maximum or minimum, which often only scales the values, is not reported,
    and neither is a detached value that is then only rounded or compared, as in a mask.

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


@rule("warning", reads="end")
@immutable
class SummedDerivative(Event):
    """A second `autograd.grad` differentiates the sum of a gradient's components, so each of its
    results also contains mixed derivatives.

    ## Why it matters

    `autograd.grad(u_x, x, torch.ones_like(u_x))` is the gradient of the sum of all components of
    `u_x`. For an input with two columns, its first column is u_xx + u_xy, not u_xx. A network that
    is trained by it solves another differential equation.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.autograd import grad
    from graphviz_torch import record

    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    with record(net) as recording:
        x = torch.rand(16, 2, requires_grad=True)
        u = net(x)
        (du,) = grad(u, x, torch.ones_like(u), create_graph=True)
        (ddu,) = grad(du, x, torch.ones_like(du), create_graph=True)  # <- reported
        (ddu[:, 0] + ddu[:, 1] + u[:, 0]).square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.autograd import grad
    from graphviz_torch import record

    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    with record(net) as recording:
        x = torch.rand(16, 2, requires_grad=True)
        u = net(x)
        (du,) = grad(u, x, torch.ones_like(u), create_graph=True)
        laplacian = 0
        for i in range(2):
            (column,) = grad(du[:, i].sum(), x, create_graph=True)
            laplacian = laplacian + column[:, i]
        (laplacian + u[:, 0]).square().mean().backward()
    ```

    ## When it is intended

    If the function is a sum of functions of one component each, its mixed derivatives are zero.
    Silence the rule at the line.

    ## Not detected

    Only calls with one output, one input and explicit `grad_outputs` are checked.

    ## See also

    - [torch.autograd.grad](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)
    """

    # `where` is the line of the second call.
    components: int = 0

    def report(self) -> Finding:
        return finding(
            "warning",
            f"autograd.grad{at(self.where)} differentiates the sum of the {self.components} "
            "components of a gradient: each component of the result also contains the mixed second "
            "derivatives.",
            cause="a derivative of the sum of components",
            advice="Differentiate one component at a time, as in torch.autograd.grad(du[:, i]."
            "sum(), x, create_graph=True)[0][:, i].",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class UnusedDerivativeInput(IneffectiveCall):
    """`autograd.grad` returns None, because the loss does not depend on the tensor that it gets,
    but on the tensor from which this one was computed.

    ## Why it matters

    Each index, slice or row of a tensor is a new tensor. The loss depends on it only if the loss is
    computed from this new tensor. With `allow_unused=True` no error is raised, and code that skips
    None updates nothing.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    with record(model) as recording:
        loss = model(torch.randn(8, 4)).square().mean()
        for row in model.weight:
            (slope,) = torch.autograd.grad(  # <- reported
                loss, row, retain_graph=True, allow_unused=True
            )
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    with record(model) as recording:
        loss = model(torch.randn(8, 4)).square().mean()
        (slopes,) = torch.autograd.grad(loss, model.weight, retain_graph=True)
        for slope in slopes:
            print(slope.norm())
        loss.backward()
    ```

    ## When it is intended

    A program may test whether one result depends on another. A line that returns a derivative in
    another call is not reported.

    ## Not detected

    Calls for parameters that the loss does not use at all are not reported, nor are calls with
    `materialize_grads=True`, which returns zeros.

    ## See also

    - [torch.autograd.grad](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)
    """

    label: str = ""  # name of the tensor
    source: str = ""  # name of the tensor from which it was computed
    created: str = ""  # line that computed it

    def report(self) -> Finding:
        name, source = self.label or "a tensor", self.source or "a leaf"
        return finding(
            "warning",
            f"autograd.grad{at(self.where)} always returns None for {name}, which was computed "
            f"from {source}{at(self.created)}: the loss depends on {source}, but not on {name}.",
            cause="not used in the graph",
            advice=f"Pass {source} to autograd.grad{at(self.where)}, and index its derivative.",
            where=self.where,
            nodes=self.nodes,
        )
