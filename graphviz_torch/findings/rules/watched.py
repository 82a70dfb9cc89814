"""Whole trainings: `watch` compares each step with the steps before it."""

from __future__ import annotations

from ..rule import described


@described("error", "watch")
def nonfinite_loss() -> None:
    """The loss is NaN or Inf, and an optimizer is about to step with its gradients.

    ## Why it matters

    One step with the gradients of such a loss makes every parameter NaN, and nothing can be learned
    after it. `watch` runs the model again on the same batch and names the first operation whose
    result is not finite, or the row of the data.

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

    A gradient scaler skips steps whose gradients are not finite: an infinite loss is then not
    reported.

    ## Not detected

    A loss that is computed without a backward.

    ## See also

    - [torch.autograd.detect_anomaly](https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection)
    """


@described("warning", "watch")
def no_gradient() -> None:
    """A parameter that an optimizer holds had no gradient, or only zeros, in 20 steps in a row.

    ## Why it matters

    The parameter keeps its first values while the rest of the model is trained around them.
    """


@described("warning", "watch")
def gradient_spike() -> None:
    """The norm of the gradients is ten times the largest norm of the 50 steps before.

    ## Why it matters

    One such step can undo thousands of steps. A bad batch, a learning rate that is too high or
    gradients that were not unscaled are common causes.
    """


@described("warning", "watch")
def large_update() -> None:
    """A step changed a weight by more than a tenth of its norm, in three samples in a row.

    ## Why it matters

    A healthy step changes weights by about a thousandth of their norm: larger ones forget what was
    learned.
    """


@described("warning", "watch")
def growing_memory() -> None:
    """The memory in use grew in each of eight samples in a row, by more than 64 MiB.

    ## Why it matters

    The training will end with an out-of-memory error, often hours later and far from the cause.
    """


@described("warning", "watch")
def learning_rate_jump() -> None:
    """The learning rate of an optimizer is far above the largest that it had before.

    ## Why it matters

    The next steps change weights by as much more: the loss grows, and can become NaN.
    """


@described("error", "watch")
def replaced_parameters() -> None:
    """The model has other parameters than those that its optimizer holds.

    ## Why it matters

    The optimizer updates tensors that the model does not use any more, as after a new head or a
    call that replaces parameters: the new ones never change.

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

    ## When it is intended

    A part that is swapped for evaluation and put back.

    ## Not detected

    Models whose parameters no watched optimizer has held.

    ## See also

    - [Constructing an optimizer](https://docs.pytorch.org/docs/stable/optim.html#constructing-it)
    - [torch.nn.Module.load_state_dict](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict)
    """


@described("warning", "watch")
def stale_average() -> None:
    """A moving average of the weights has not changed, though the weights have.

    ## Why it matters

    An evaluation with the averaged weights judges the model as it was at the beginning.
    """


@described("warning", "watch")
def collapsed_weight() -> None:
    """The norm of a weight is less than a thousandth of what it was.

    ## Why it matters

    A layer whose weights are almost zero passes on almost nothing: weight decay that is too strong,
    or a loss that it minimises best by computing nothing, are common causes.
    """
