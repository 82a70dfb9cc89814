"""Rules about moving averages of the weights."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import IneffectiveCall
from ...graph.immutable import immutable
from ..rule import finding, rule
from ..words import at


@rule("warning", reads="end", also=("watch",))
@immutable
class StaleAverage(IneffectiveCall):
    """A moving average of the weights, or a target network, did not change although the weights
    changed, or it leaves out the running statistics of batch norm.

    ## Why it matters

    An evaluation with the average measures the initial model. A target network that never changes
    teaches the model to predict the values of its initial weights. Batch norm in an average
    normalizes with the statistics of the initial model, if the program averages parameters alone.

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

    ```python
    import copy

    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1))
    teacher = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - teacher(x)).square().mean().backward()
            optimizer.step()
            for slow, fast in zip(teacher.parameters(), model.parameters()):
                slow.lerp_(fast.detach(), 0.1)  # <- reported
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

    ```python
    import copy

    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1))
    teacher = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - teacher(x)).square().mean().backward()
            optimizer.step()
            for slow, fast in zip(teacher.parameters(), model.parameters()):
                slow.lerp_(fast.detach(), 0.1)
            for slow, fast in zip(teacher.buffers(), model.buffers()):
                slow.copy_(fast)
    ```

    ## When it is intended

    A frozen copy, such as the reference model of DPO, is not meant to change. Give its variable a
    name that does not contain ema, average, shadow or target. A target network is reported only
    after 20,000 steps without a change.

    ## Not detected

    `watch` recognizes averages by variable names that contain ema, average, shadow or target, in
    functions of the training loop. Other averages, and averages on a GPU, are not checked.

    An average that only an evaluation after the recorded steps calls is found if it is a module in
    a variable around the optimizer's step, or an attribute of an object there.

    ## See also

    - [Weight averaging](https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema)
    """

    # `where` is the line that changes the parameters.
    module: str = ""

    def report(self) -> Finding:
        return finding(
            "warning",
            f"The parameters of {self.module}, an average, are changed{at(self.where)}, but the "
            "running statistics of its batch norm are not: in eval mode it normalizes with old "
            "statistics.",
            cause="average without the running statistics",
            advice="Average or copy the buffers, too, or call "
            "torch.optim.swa_utils.update_bn before the average is used.",
            where=self.where,
        )
