"""Rules about dropout and batch norm that are active, or switched off, at the wrong time."""

from __future__ import annotations

from ...graph import Finding
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.text import listing
from ...graph.units import count_text
from ..rule import finding, rule
from ..words import at

_EFFECTS = {
    "dropout": "dropout makes the result random",
    "batch norm": "batch norm normalizes with the batch and updates its running statistics",
}


@rule("info", reads="end")
@immutable
class TrainModeWithoutGradients(Event):
    """A module runs in train mode in a forward without gradients, such as one of a validation, a
    teacher or a reference model, with active dropout or batch norm.

    ## Why it matters

    Dropout makes the result random, and worse than in eval mode. The probabilities of a reference
    model, or of the policy before its update, then differ from those of the same weights, and
    their ratio is noise. Batch norm normalizes with the batch, and a validation changes its
    running statistics.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            print(model(torch.randn(8, 4)).square().mean())  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            print(model(torch.randn(8, 4)).square().mean())
        model.train()
    ```

    ## When it is intended

    The generator of a GAN usually stays in train mode while the discriminator learns. Monte Carlo
    dropout samples predictions on purpose.

    ## Not detected

    Other layers with a train mode of their own are not checked. Neither is a frozen batch norm
    without weights. Forwards in a compiled graph are not observed.

    ## See also

    - [Module.eval](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval)
    - [Dropout](https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout.html)
    """

    module: str = ""  # path of the module; "" for the model
    active: tuple[str, ...] = ()  # "dropout", "batch norm"
    frozen: bool = False  # True if no parameter of the module requires a gradient
    count: int = 0  # number of forwards
    layers: int = 0  # number of frozen batch norm layers of a forward with gradients

    def report(self) -> Finding:
        if self.layers:
            return self._frozen_norms()
        name = self.module or "The model"
        frozen = ", although it is frozen" if self.frozen else ""
        effects = listing(_EFFECTS[each] for each in self.active if each in _EFFECTS)
        return finding(
            "info",
            f"{name} ran in train mode{frozen}, without gradients, in "
            f"{count_text(self.count, 'forward')}{at(self.where)}: {effects}.",
            cause="train mode without gradients",
            advice="Call eval() before such forwards, and train() before the next training step; "
            "a model that never learns stays in eval mode.",
            where=self.where,
        )

    def _frozen_norms(self) -> Finding:
        """Return the finding about batch norm layers with frozen weights in train mode."""
        more = self.layers - 1
        others = f" and {count_text(more, 'other layer')}" if more else ""
        return finding(
            "info",
            f"The weights of {self.module}{others} are frozen, but it ran in train mode"
            f"{at(self.where)}: {_EFFECTS['batch norm']}.",
            cause="train mode without gradients",
            advice="Call eval() on the frozen part after each train() of the model.",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class DropoutSwitchedOff(Event):
    """The probability of a dropout is 0 in training, although it was larger in earlier steps.

    ## Why it matters

    A program may set the probability to 0 for an evaluation. If it does not restore the value, the
    rest of the training runs without dropout.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            if step == 1:
                model[1].p = 0.0  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            if step == 1:
                model.eval()(torch.randn(8, 4))
                model.train()
    ```

    ## When it is intended

    A schedule may lower the probability to 0 during training.

    ## Not detected

    A flag that skips the call of dropout altogether is not noticed.

    ## See also

    - [Dropout](https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout.html)
    """

    # `where` is the line that sets the probability, or else the line of the dropout.
    function: str = ""  # "dropout"
    rate: float = 0.0  # the earlier probability
    attribute: str = ""  # attribute that contains the probability; "" if unknown
    called: str = ""  # line of the dropout

    def report(self) -> Finding:
        known = bool(self.attribute)
        where = f": {self.attribute} is set to 0{at(self.where)}" if known else ""
        return finding(
            "warning" if known else "info",
            f"{self.function}(){at(self.called)} dropped values with the probability "
            f"{self.rate:g} in earlier steps, and now has the probability 0{where}.",
            cause="dropout switched off",
            advice="Call eval() for the evaluation and train() afterwards, and leave the "
            "probability as it is: dropout acts in train mode only.",
            where=self.where,
        )
