"""Rules about gradients that the program reads, or computes with `torch.func`."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event, IneffectiveCall
from ...graph.immutable import immutable
from ...graph.units import count_text
from ..rule import finding, rule
from ..words import at


@rule("warning", reads="end")
@immutable
class SummedGradientsRead(Event):
    """The program reads the gradients of several losses from `.grad`, one after the other, but does
    not clear them in between, so it reads sums.

    ## Why it matters

    Each backward adds to `.grad`. The gradients that are read after the second backward also
    contain those of the first loss. Weights of losses that are computed from their norms, or
    angles between them, are wrong.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        y = model(torch.randn(8, 4))
        losses, norms = [y[:, 0].square().mean(), y[:, 1].abs().mean()], []
        for loss in losses:
            loss.backward(retain_graph=True)  # <- reported
            norms.append(model.weight.grad.norm())
        optimizer.zero_grad()
        sum(loss / norm for loss, norm in zip(losses, norms)).backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        y = model(torch.randn(8, 4))
        losses, norms = [y[:, 0].square().mean(), y[:, 1].abs().mean()], []
        for loss in losses:
            (gradient,) = torch.autograd.grad(loss, model.weight, retain_graph=True)
            norms.append(gradient.norm())
        optimizer.zero_grad()
        sum(loss / norm for loss, norm in zip(losses, norms)).backward()
        optimizer.step()
    ```

    ## When it is intended

    A program may subtract the gradients that it has read before. Silence the rule at the line.

    ## Not detected

    Only losses that are parts of a later loss of the same step are checked. The gradients of
    batches that are accumulated are not reported.

    ## See also

    - [torch.autograd.grad](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)
    """

    # `where` is the line of the last of the backwards.
    backwards: int = 0

    def report(self) -> Finding:
        return finding(
            "warning",
            f"The gradients after each of {self.backwards} backwards{at(self.where)} were read "
            "without being cleared in between: those of each loss also contain those of the losses "
            "before.",
            cause="gradients of several losses in .grad",
            advice="Compute the gradients of one loss by torch.autograd.grad(loss, parameters, "
            "retain_graph=True), or set them to None before each backward.",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class IgnoredFuncArgument(IneffectiveCall):
    """`torch.func.grad` differentiates with respect to an argument that the function ignores, so
    all gradients are zero.

    ## Why it matters

    `torch.func.grad` raises no exception for an argument that the function does not use: it returns
    zeros, and the optimizer trains nothing. Often the function calls the model with other
    parameters than those of this argument.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.func import functional_call, grad
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    everything = dict(model.named_parameters())
    with record(model) as recording:
        x = torch.randn(8, 4)
        loss = lambda trained: functional_call(model, everything, x).square().mean()
        for name, gradient in grad(loss)(everything).items():  # <- reported
            print(name, gradient.norm())
        model(x).square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.func import functional_call, grad
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    everything = dict(model.named_parameters())
    with record(model) as recording:
        x = torch.randn(8, 4)
        loss = lambda trained: functional_call(model, trained, x).square().mean()
        for name, gradient in grad(loss)(everything).items():
            print(name, gradient.norm())
        model(x).square().mean().backward()
    ```

    ## When it is intended

    The derivative of a constant function is zero. Second derivatives are not reported.

    ## Not detected

    An argument of which only a part is ignored is not reported.

    ## See also

    - [torch.func.grad](https://docs.pytorch.org/docs/stable/generated/torch.func.grad.html)
    """

    # `where` is the line that calls the transformed function.
    tensors: int = 0  # number of tensors of the argument

    def report(self) -> Finding:
        return finding(
            "warning",
            f"The gradients that torch.func computes{at(self.where)} are all zero: the function "
            "does not use the argument with respect to which it is differentiated "
            f"({count_text(self.tensors, 'tensor')}).",
            cause="an unused argument",
            advice="Use this argument in the function, for example as the parameters that "
            "functional_call gets.",
            where=self.where,
        )
