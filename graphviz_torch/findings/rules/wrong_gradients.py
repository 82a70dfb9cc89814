"""Rules about a backward that is not the derivative of its forward: in Functions and estimators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ...graph import Finding
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at


@immutable
class WrongGradient(Event):
    """A custom backward that returns another gradient than the derivative of its forward.

    `nodes` are the ids of the Function's nodes.
    """

    function: str = ""  # class of the Function
    arguments: tuple[str, ...] = ()  # arguments of forward whose gradient is wrong
    error: float = 0.0  # relative error of the worst gradient
    given: float = 0.0  # the element of this gradient that differs most, as backward returned it
    expected: float = 0.0  # the derivative by this element
    defined: str = ""  # line at which backward is defined


@rule("warning", reads="end", of=(WrongGradient,))
def wrong_backward(reading: Reading) -> Iterator[Finding]:
    """The backward of a custom Function returns another gradient than the derivative of its
    forward.

    ## Why it matters

    The optimizer follows the gradient that backward returns. With a wrong gradient, the loss may
    fall for some time, but it does not reach its minimum. No exception shows the mistake.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * 2 * x


    model = nn.Linear(4, 2)
    with record(model) as recording:
        Cube.apply(model(torch.randn(8, 4))).sum().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * 3 * x**2


    model = nn.Linear(4, 2)
    with record(model) as recording:
        Cube.apply(model(torch.randn(8, 4))).sum().backward()
    ```

    ## When it is intended

    A Function may replace a gradient on purpose. Two cases are not reported: a forward that returns
    its input, as in a gradient reversal, and a gradient where the derivative is 0, as in a
    straight-through estimator. Other replaced gradients are reported, such as those of guided
    backpropagation, or the smooth gradient of a ReLU.

    An adjoint method may discretize the equation of backward in another way than that of forward.
    Its error becomes smaller with the step size.

    ## Not detected

    Only the first call of each Function is checked, and only in the first step in which it runs.
    The forward is not run again: its calls into PyTorch are repeated on copies of its inputs.

    A forward that uses NumPy, numbers (`item`), random numbers, rounding, or kernels that are not
    called through PyTorch is not checked. Neither are inputs of more than a million elements, and
    Functions inside `torch.func` transforms. `torch.autograd.gradcheck` checks any Function.

    ## See also

    - [torch.autograd.gradcheck](https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html)
    - [Extending torch.autograd](https://docs.pytorch.org/docs/stable/notes/extending.html)
    """
    for event in reading.events(WrongGradient):
        where = reading.graph.nodes[event.nodes[0]].where if event.nodes else ""
        subject = "a wrong gradient" if len(event.arguments) == 1 else "wrong gradients"
        yield finding(
            "warning",
            f"The backward of {event.function}{at(event.defined)} returns {subject} of "
            f"{listing(event.arguments)}: the relative error against the derivative of its forward "
            f"is {event.error:.2g}. The element that differs most is {event.given:.3g}, where "
            f"{event.expected:.3g} is right.",
            cause="wrong backward",
            advice=f"Compare {event.function} with torch.autograd.gradcheck on inputs of float64, "
            "and correct its backward.",
            where=where or event.defined,
            nodes=event.nodes,
        )


@rule("warning", reads="end")
@immutable
class OverwrittenSavedTensor(Event):
    """A tensor that a custom Function saved was overwritten before its backward, and autograd did
    not notice.

    ## Why it matters

    Backward computes its gradients from the new values, so they are wrong. PyTorch raises an
    exception if a saved tensor was changed in place, but it does not notice changes through
    `.data`, through NumPy arrays, or by kernels that are not called through PyTorch.

    ## Example

    ```python
    import torch
    from torch.autograd import Function
    from graphviz_torch import record


    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)  # <- reported
            return x.square()

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient * ctx.saved_tensors[0]


    x = torch.randn(4, requires_grad=True)
    with record() as recording:
        loss = Square.apply(x).mean()
        x.data.zero_()
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch.autograd import Function
    from graphviz_torch import record


    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient * ctx.saved_tensors[0]


    x = torch.randn(4, requires_grad=True)
    with record() as recording:
        loss = Square.apply(x).mean()
        loss.backward()
        x.data.zero_()
    ```

    ## When it is intended

    It is never intended. A kernel that writes its result into the memory of its input is right only
    if no Function has saved this input.

    ## Not detected

    Only the first call of each Function is checked, if its forward can be checked as described for
    [`wrong-backward`](wrong-backward.md). Tensors saved by PyTorch's own operations are not
    checked.

    ## See also

    - [In-place correctness checks](https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-correctness-checks)
    """

    # `where` is the line that saves the tensors; `nodes` are the ids of the Function's nodes.
    function: str = ""  # class of the Function
    defined: str = ""  # line at which backward is defined

    def report(self) -> Finding:
        return finding(
            "warning",
            f"A tensor that {self.function} saved{at(self.where)} had other values when its "
            f"backward{at(self.defined)} read it, so the gradient is wrong. Autograd did not "
            "notice the change, which was made through .data, or by a kernel outside of PyTorch.",
            cause="saved tensor overwritten",
            advice="Write into a new tensor in place of the saved one, or save a clone of it.",
            where=self.where or self.defined,
            nodes=self.nodes,
        )


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
