"""Rules of `watch` about parameters and learning rates: large, lost and useless updates."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.text import listing
from ...graph.units import count_text
from ..rule import external_rule, finding, rule
from ..words import at


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
