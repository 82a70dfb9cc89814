"""Rules about dropout and batch norm that are active, or switched off, at the wrong time."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding
from ...graph.events import DropoutSwitchedOff, TrainModeForward
from ...graph.text import listing
from ...graph.units import count_text
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

_EFFECTS = {
    "dropout": "dropout makes the result random",
    "batch norm": "batch norm normalizes with the batch and updates its running statistics",
}


@rule("info", reads="end", of=(TrainModeForward,))
def train_mode_without_gradients(reading: Reading) -> Iterator[Finding]:
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
    for event in reading.events(TrainModeForward):
        if event.layers:
            yield _frozen_norms(event)
            continue
        name = event.module or "The model"
        frozen = ", although it is frozen" if event.frozen else ""
        effects = listing(_EFFECTS[each] for each in event.active if each in _EFFECTS)
        yield finding(
            "info",
            f"{name} ran in train mode{frozen}, without gradients, in "
            f"{count_text(event.count, 'forward')}{at(event.where)}: {effects}.",
            cause="train mode without gradients",
            advice="Call eval() before such forwards, and train() before the next training step; "
            "a model that never learns stays in eval mode.",
            where=event.where,
        )


def _frozen_norms(event: TrainModeForward) -> Finding:
    """Return the finding about batch norm layers with frozen weights in train mode."""
    more = event.layers - 1
    others = f" and {count_text(more, 'other layer')}" if more else ""
    return finding(
        "info",
        f"The weights of {event.module}{others} are frozen, but it ran in train mode"
        f"{at(event.where)}: {_EFFECTS['batch norm']}.",
        cause="train mode without gradients",
        advice="Call eval() on the frozen part after each train() of the model.",
        where=event.where,
    )


@rule("warning", reads="end", of=(DropoutSwitchedOff,))
def dropout_switched_off(reading: Reading) -> Iterator[Finding]:
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
    for event in reading.events(DropoutSwitchedOff):
        known = bool(event.attribute)
        where = f": {event.attribute} is set to 0{at(event.where)}" if known else ""
        yield finding(
            "warning" if known else "info",
            f"{event.function}(){at(event.called)} dropped values with the probability "
            f"{event.rate:g} in earlier steps, and now has the probability 0{where}.",
            cause="dropout switched off",
            advice="Call eval() for the evaluation and train() afterwards, and leave the "
            "probability as it is: dropout acts in train mode only.",
            where=event.where,
        )
