"""Whole trainings: `watch` compares each step with earlier steps."""

from __future__ import annotations

from ..rule import external_rule


@external_rule("error", "watch")
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


@external_rule("warning", "watch")
def no_gradient() -> None:
    """A parameter that an optimizer holds had no gradient, or only zeros, in 20 steps in a row.

    ## Why it matters

    The parameter keeps its first values while the rest of the model is trained around them. Usually
    the loss does not use the module, or a `detach()` is in between.

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

    A part that is trained later: give its parameters to the optimizer when their training begins,
    or set `requires_grad` to False until then.

    ## Not detected

    Parameters that no optimizer holds: `not-in-optimizer` reports those of a recorded step.
    Gradients that are small and not zero.

    ## See also

    - [Autograd mechanics: locally disabling gradients](https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation)
    """


@external_rule("warning", "watch")
def gradient_spike() -> None:
    """The norm of the gradients is more than ten times the largest norm of the 50 steps before.

    ## Why it matters

    One such step can undo thousands of steps. A bad batch, a learning rate that is too high and
    gradients that were not unscaled are common causes.

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

    Clip the norm of the gradients, and look at the data of the batch:

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

    A change of the loss or of the data in the middle of a training, as in a curriculum. Norms below
    a hundredth of the largest ones of the beginning are not reported, so that a model that has
    converged is left alone.

    ## Not detected

    Spikes within the first 50 steps, and a norm that grows slowly.

    ## See also

    - [clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
    """


@external_rule("warning", "watch")
def large_update() -> None:
    """A step changes a weight by more than a tenth of its norm, in three samples of the weight in a
    row.

    ## Why it matters

    In a stable training a step changes a weight by about a thousandth of its norm. Larger steps
    forget what the model has learned: usually the learning rate is too high.

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

    The first 50 steps, in which weights may move fast, are not judged.

    ## Not detected

    Large updates of vectors, such as biases: weights of two and more dimensions are sampled.

    ## See also

    - [torch.optim.lr_scheduler](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """


@external_rule("warning", "watch")
def growing_memory() -> None:
    """The memory in use grew in each of eight samples in a row (one every 32 steps), by more than
    64 MiB in all.

    ## Why it matters

    The training will end with an out-of-memory error, often hours later and far from the cause.

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

    Keep a number in place of the tensor:

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

    A cache or a replay buffer that fills up to a limit.

    ## Not detected

    Growth that pauses between two samples. The report cannot name the line: record a few steps, or
    use a memory snapshot of PyTorch.

    ## See also

    - [Understanding CUDA memory usage](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html)
    - [Frequently asked questions: out of memory](https://docs.pytorch.org/docs/stable/notes/faq.html)
    """


@external_rule("warning", "watch")
def learning_rate_jump() -> None:
    """The learning rate of an optimizer is more than 500 times the largest that it had before.

    ## Why it matters

    The next steps change the weights by as much more: the loss grows, and can become NaN. Usually a
    scheduler was given a wrong factor or loaded a state of another optimizer.

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

    A warmup from almost zero: jumps within the first ten steps, and up to the optimizer's
    `initial_lr`, are not reported.

    ## Not detected

    Smaller jumps. `large-update` reports what they do to the weights.

    ## See also

    - [How to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """


@external_rule("error", "watch")
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


@external_rule("warning", "watch")
def stale_average() -> None:
    """A moving average of the weights, or a target network, has not changed although the weights
    have.

    ## Why it matters

    An evaluation with the averaged weights judges the model as it was at the beginning. A target
    network that stays the same teaches the model to predict its own first values.

    ## Example

    ```python
    import copy

    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    ema_model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for _ in range(600):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True) - torch.randn(8, 1)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                ema_model.weight.mul_(1.0).add_(model.weight, alpha=0.0)
    ```

    ## Use instead

    ```python
    import copy

    import torch
    from torch import nn
    from graphviz_torch import watch

    model = nn.Linear(4, 1)
    ema_model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watching:
        for _ in range(600):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True) - torch.randn(8, 1)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                ema_model.weight.lerp_(model.weight, 0.01)
    ```

    ## When it is intended

    A frozen copy, such as the reference model of DPO: call it something else than ema, average,
    shadow or target. A target network may stay the same for 20,000 steps.

    ## Not detected

    Averages that no variable of the training functions refers to by such a name, and averages on a
    GPU.

    ## See also

    - [Weight averaging](https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema)
    """


@external_rule("warning", "watch")
def collapsed_weight() -> None:
    """The norm of a weight is less than a thousandth of the largest norm that it had.

    ## Why it matters

    A layer whose weights are almost zero passes on almost nothing. Common causes are weight decay
    that is too strong and a loss that is lowest if the layer computes nothing.

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

    Pruning sets weights to zero on purpose. A new head may begin at zero: parameters that are
    replaced are judged from then on alone.

    ## Not detected

    Weights that were almost zero from the start, and vectors, such as biases.

    ## See also

    - [torch.optim.SGD: weight_decay](https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html)
    - [AdamW](https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html)
    """
