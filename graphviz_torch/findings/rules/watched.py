"""Rules of `watch`, which observes a training run and compares each step with earlier steps."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import IneffectiveCall
from ...graph.immutable import immutable
from ..repeated_findings import SPOILT
from ..rule import external_rule, finding, rule
from ..words import at


@rule("error", reads="end", also=("watch",))
@immutable
class NonfiniteLoss(IneffectiveCall):
    """The loss is NaN or Inf, and an optimizer is about to step with the gradients of this loss.

    ## Why it matters

    A step with the gradients of such a loss makes all parameters NaN, and the model cannot learn
    any more.

    `watch` runs the model again on the same batch, and names the first operation whose result is
    not finite, or the row of the data that is not finite. `graphviz-torch run` names the step from
    which on the loss is not finite, if it comes after the recorded steps.

    ## Example

    ```python
    import math

    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for value in (1.0, math.nan):
            optimizer.zero_grad()
            model(torch.full((4, 2), value)).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import math

    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for value in (1.0, math.nan):
            if not math.isfinite(value):
                continue
            optimizer.zero_grad()
            model(torch.full((4, 2), value)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A gradient scaler skips steps whose gradients are not finite. With a scaler, an infinite loss is
    not reported.

    ## Not detected

    A loss from which no backward runs is not checked. `run` does not report a loss that is finite
    again later.

    ## See also

    - [torch.autograd.detect_anomaly](https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection)
    """

    # `where` is the line of backward. The event is about a loss after the recorded steps.
    is_nan: bool = True  # False if the first of the values is infinite
    # True if a parameter was NaN or infinite before the step; None if unknown
    spoilt: bool | None = None
    step: int = 0  # number of the first step from which on the loss is not finite
    steps: int = 0  # number of steps
    recorded: int = 0  # number of the steps up to the last recorded step

    def report(self) -> Finding:
        value = (
            "infinite" if not self.is_nan else "NaN" if self.spoilt is not None else "NaN or Inf"
        )
        if self.spoilt:
            why = f", because step {self.step} had made parameters NaN or infinite"
        else:
            why = "" if self.spoilt is None else ", although all parameters were finite"
        first = self.step - bool(self.spoilt)  # the step to record
        return finding(
            "error",
            f"The loss of backward{at(self.where)} is {value} from step {self.step + 1} of "
            f"{self.steps} on{why}. It was finite in the recorded steps, up to step "
            f"{self.recorded}.",
            # The gradient that made parameters NaN may be in a recorded step, which has a finding.
            cause=SPOILT if first < self.recorded else "a loss that becomes NaN later",
            advice=f"Record step {first + 1} to see the first operation or gradient that is not "
            f"finite: graphviz-torch run --every {max(1, first)} --steps 2.",
            where=self.where,
        )


@external_rule("warning", "watch")
def no_gradient() -> None:
    """A parameter in an optimizer had no gradient, or a gradient of zeros, in 20 consecutive steps.

    ## Why it matters

    The parameter keeps its initial values, while the rest of the model adapts to them. Usually the
    loss does not use the parameter's module, or a `detach()` is between the module and the loss.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for _ in range(100):
            optimizer.zero_grad()
            h = model["body"](torch.randn(8, 4)).detach()
            model["head"](h).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for _ in range(100):
            optimizer.zero_grad()
            h = model["body"](torch.randn(8, 4))
            model["head"](h).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A part of the model may be trained later. Until then, leave its parameters out of the optimizer,
    or set their `requires_grad` to False.

    ## Not detected

    Parameters that are in no optimizer are not checked; in a recorded step, `not-in-optimizer`
    reports them. Gradients that are small but not zero are not reported.

    ## See also

    - [Autograd mechanics: locally disabling gradients](https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation)
    """


@external_rule("warning", "watch")
def gradient_spike() -> None:
    """The norm of the gradients is more than ten times as large as in any of the previous 50 steps.

    ## Why it matters

    A single such step can undo thousands of steps. Common causes are a bad batch, a learning rate
    that is too high, and gradients that were not unscaled.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watch(model) as watching:
        for step in range(300):
            x = torch.randn(8, 4) * (100 if step > 280 else 1)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    Clip the norm of the gradients, and check the data of the batch:

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watch(model) as watching:
        for step in range(300):
            x = torch.randn(8, 4) * (100 if step > 280 else 1)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    ```

    ## When it is intended

    The loss or the data may change during training, as in a curriculum. Norms below a hundredth of
    the largest norms at the beginning are not reported, because a converged model has such norms.

    ## Not detected

    Spikes within the first 50 steps, and norms that grow slowly, are not reported.

    ## See also

    - [clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
    """


@external_rule("warning", "watch")
def growing_memory() -> None:
    """The memory in use grew in eight consecutive samples (one every 32 steps), by more than 64 MiB
    in total.

    ## Why it matters

    Training will end with an out-of-memory error, often hours later and at an unrelated line.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model, outputs = nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for step in range(400):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True) - torch.randn(8, 1)).square().mean().backward()
            optimizer.step()
            if step % 30 == 0:
                outputs.append(torch.randn(9_000_000))
    ```

    ## Use instead

    Keep a number instead of the tensor:

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model, outputs = nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for step in range(400):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True) - torch.randn(8, 1)).square().mean().backward()
            optimizer.step()
            if step % 30 == 0:
                outputs.append(torch.randn(9_000_000).mean().item())
    ```

    ## When it is intended

    A cache or a replay buffer may grow up to a limit.

    ## Not detected

    Growth that pauses between two samples is not reported. The report cannot name the line that
    keeps memory. To find it, record a few steps, or use PyTorch's memory snapshot.

    ## See also

    - [Understanding CUDA memory usage](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html)
    - [Frequently asked questions: out of memory](https://docs.pytorch.org/docs/stable/notes/faq.html)
    """
