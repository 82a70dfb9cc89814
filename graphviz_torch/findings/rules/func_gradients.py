"""Rules about gradients that `torch.func` computes."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import IneffectiveCall
from ...graph.immutable import immutable
from ...graph.units import count_text
from ..rule import finding, rule
from ..words import at


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
