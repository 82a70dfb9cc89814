"""Rules about values that are copied into trained parameters between two steps."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event, IneffectiveCall
from ...graph.immutable import immutable
from ..rule import finding, finds, rule
from ..words import at, times


@rule("warning", reads="end")
@immutable
class OverwrittenWeights(Event):
    """Trained parameters are overwritten with other values between two optimizer steps, so the
    earlier updates are lost.

    ## Why it matters

    A program that evaluates an average of the weights, or a saved state, may copy it into the model
    that it trains. Training then continues from the copied weights, while the optimizer still has
    the moments of the lost weights.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, average = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with record(model) as recording:
        for epoch in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            model.load_state_dict(average.state_dict())  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, average = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with record(model) as recording:
        for epoch in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            average(torch.randn(8, 4)).detach()
    ```

    ## When it is intended

    Lookahead and Reptile set the weights back to slow weights, and a program may return to the best
    weights so far. The finding is a warning only if a variable still has the trained weights.

    ## Not detected

    Results of operations that are copied into a parameter, such as a projection of its own values,
    are not reported. Neither are weights that the program restores before the next step. After the
    recorded steps, only parameters on a CPU are compared.

    ## See also

    - [torch.optim.swa_utils](https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema)
    """

    operation: str = ""  # "load_state_dict", "copy_"

    def report(self) -> Finding:
        return finding(
            "info",
            f"{self.operation}{at(self.where)} overwrites weights that an optimizer trains, and "
            "the next step continues from the copied values: the updates of earlier steps are "
            "lost.",
            cause="trained weights overwritten",
            advice="Copy into another model, such as copy.deepcopy(model), or restore the weights "
            "before the next step.",
            where=self.where,
        )


@finds("overwritten-weights", reads="end")
@immutable
class UnrestoredWeights(IneffectiveCall):
    """Trained parameters that were replaced, and not restored before the next optimizer step.

    `where` is the line that replaces them, or that of the step.
    """

    kept: str = ""  # variable that still has the trained values
    source: str = ""  # variable that has the values of the parameters now
    step: int = 0  # number of optimizer steps so far, including the next one

    def report(self) -> Finding:
        return finding(
            "warning",
            f"The values of {self.source} replace the trained weights{at(self.where)}, and step "
            f"{self.step} continues from them: {self.kept}, which has the trained weights, was not "
            "copied back.",
            cause="trained weights not restored",
            advice=f"Copy {self.kept} back into the model before the next step, or evaluate a "
            "second model, such as copy.deepcopy(model).",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class CopyOntoItself(Event):
    """A trained parameter is copied onto itself, which changes nothing, because the saved state
    shares the memory of the parameters.

    ## Why it matters

    `state_dict()` returns the parameters themselves, not copies. A state that is kept without a
    copy changes with each step, so loading it does not bring back the best weights. Likewise, a
    target network that is the model itself never differs from the model.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        best = model.state_dict()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        model.load_state_dict(best)  # <- reported
    ```

    ## Use instead

    ```python
    import copy
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        best = copy.deepcopy(model.state_dict())
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        model.load_state_dict(best)
    ```

    ## When it is intended

    It is never intended, because nothing is copied.

    ## Not detected

    Only parameters that an optimizer has updated before the copy are checked.

    ## See also

    - [Saving and loading models](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html)
    """

    operation: str = ""  # "load_state_dict", "copy_"

    def report(self) -> Finding:
        return finding(
            "warning",
            f"{self.operation}{at(self.where)} copies parameters onto themselves"
            f"{times(self)}, which changes nothing: the source shares their memory, so the "
            "steps have changed it, too.",
            cause="copy of a tensor onto itself",
            advice="Copy the values when they are saved: copy.deepcopy(model.state_dict()), or "
            "copy.deepcopy(model) for a second model.",
            where=self.where,
        )
