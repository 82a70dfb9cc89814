"""Rules about modes of PyTorch for debugging that stay on while a program trains."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event
from ...graph.immutable import immutable
from ..rule import finding, rule
from ..words import at


@rule("warning", reads="end")
@immutable
class AnomalyMode(Event):
    """PyTorch's anomaly mode is on in two or more consecutive training steps.

    ## Why it matters

    In anomaly mode, PyTorch records a traceback for each call in the forward, and checks each
    gradient for NaN. A step takes several times longer. The mode is for debugging, and is easily
    forgotten afterwards.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        with torch.autograd.set_detect_anomaly(True):  # <- reported
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A program that looks for the origin of a NaN runs in anomaly mode. If a single step is enough,
    it is not reported.

    ## Not detected

    Steps without a `torch.optim.Optimizer` are not counted, and of several backwards before a step
    only the last one is. The line is not known if the mode was
    on before the recording began, or was switched on while the recording was paused.

    ## See also

    - [torch.autograd.detect_anomaly](https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection)
    - [Performance tuning guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-debugging-apis)
    """

    steps: int = 0  # number of steps in anomaly mode

    def report(self) -> Finding:
        switched = f", switched on{at(self.where)}," if self.where else ""
        return finding(
            "warning",
            f"Anomaly mode{switched} was on in {self.steps:,} training steps.",
            cause="anomaly mode is on",
            advice="Switch anomaly mode off after debugging: it makes each step several times "
            "slower.",
            where=self.where,
        )
