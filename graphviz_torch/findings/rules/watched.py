"""Rules of `watch`, which observes a training run and compares each step with earlier steps."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event, IneffectiveCall
from ...graph.immutable import immutable
from ...graph.text import listing
from ...graph.units import count_text
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
def large_update() -> None:
    """Steps change a weight by more than a tenth of the weight's norm, in three consecutive samples
    of the weight.

    ## Why it matters

    In stable training, a step changes a weight by about a thousandth of the weight's norm. With
    much larger steps, the model forgets what it has learned. Usually the learning rate is too high.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with watch(model) as watching:
        for _ in range(200):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - torch.randn(8, 1)).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model) as watching:
        for _ in range(200):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - torch.randn(8, 1)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    Weights may change fast at the beginning, so the first 50 steps are not checked.

    ## Not detected

    Large updates of vectors, such as biases, are not detected: only weights with two or more
    dimensions are sampled.

    ## See also

    - [torch.optim.lr_scheduler](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
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


@external_rule("warning", "watch")
def learning_rate_jump() -> None:
    """The learning rate of an optimizer is more than 500 times its largest earlier value.

    ## Why it matters

    The next steps change the weights 500 times as much, so the loss grows and may become NaN.
    Usually a scheduler got a wrong factor, or loaded the state of another optimizer.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watch(model) as watching:
        for step in range(30):
            if step == 20:
                optimizer.param_groups[0]["lr"] = 1.0
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watch(model) as watching:
        for step in range(30):
            if step == 20:
                optimizer.param_groups[0]["lr"] = 1e-3
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A warm-up may start almost at zero. Jumps within the first ten steps, and jumps up to the
    optimizer's `initial_lr`, are not reported.

    ## Not detected

    Smaller jumps are not reported by this rule. If they change weights too much, `large-update`
    reports the change.

    ## See also

    - [How to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """


@rule("error", reads="end", also=("watch",))
@immutable
class ReplacedParameters(Event):
    """Parameters of the model were replaced, for good or during the forward, but the optimizer
    still contains the old ones.

    ## Why it matters

    The optimizer updates tensors that the model no longer uses, for example because a head was
    replaced. The new parameters never change. If a program puts the old ones back before the step,
    the gradient went to temporary parameters, and the old ones get none.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for step in range(12):
            if step == 2:
                model[1] = nn.Linear(4, 1)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer, weight = torch.optim.SGD(model.parameters(), lr=0.1), model.weight
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model.weight = nn.Parameter(weight.detach() / 2)
            model(torch.randn(8, 4)).square().mean().backward()
            model.weight = weight
            optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for step in range(12):
            if step == 2:
                model[1] = nn.Linear(4, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer, weight = torch.optim.SGD(model.parameters(), lr=0.1), model.weight
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            values = {"weight": weight / 2, "bias": model.bias}
            y = torch.func.functional_call(model, values, torch.randn(8, 4))
            y.square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A part of the model may be replaced for an evaluation and put back afterwards.

    ## Not detected

    Models are not checked if no watched optimizer ever held their parameters.

    ## See also

    - [Constructing an optimizer](https://docs.pytorch.org/docs/stable/optim.html#constructing-it)
    - [torch.nn.Module.load_state_dict](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict)
    """

    # `where` is the line of the step. The event is about parameters that were put back.
    parameters: tuple[str, ...] = ()  # names of the first of them
    count: int = 0  # number of these parameters
    backward: str = ""  # line of backward
    steps: int = 0

    def report(self) -> Finding:
        more = self.count - len(self.parameters)
        names = listing([*self.parameters, *[f"{more} more"] * (more > 0)])
        return finding(
            "error",
            f"backward{at(self.backward)} gives the gradient of {names} to temporary parameters of "
            "these names, and the parameters that the optimizer holds get no gradient: they were "
            f"replaced during the forward, and put back before the step{at(self.where)}, in "
            f"{count_text(self.steps, 'step')}.",
            cause="temporary parameters",
            advice="Compute the temporary values from the parameters with gradients, and pass them "
            "with torch.func.functional_call: a new nn.Parameter has no history.",
            where=self.where,
        )


@external_rule("warning", "watch")
def collapsed_weight() -> None:
    """The norm of a weight has fallen below a thousandth of its largest norm so far.

    ## Why it matters

    The result of a layer with almost zero weights is almost zero. Common causes are a weight decay
    that is too strong, and a loss that is lowest if the layer's result is zero.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5.0)
    with watch(model) as watching:
        for _ in range(100):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).abs().mean().mul(1e-4).backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5e-4)
    with watch(model) as watching:
        for _ in range(100):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).abs().mean().mul(1e-4).backward()
            optimizer.step()
    ```

    ## When it is intended

    Pruning sets weights to zero on purpose. For parameters that are replaced, such as a new head
    that starts at zero, only the norms after the replacement are compared.

    ## Not detected

    Weights that were almost zero from the start, and vectors such as biases, are not reported.

    ## See also

    - [torch.optim.SGD: weight_decay](https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html)
    - [AdamW](https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html)
    """
