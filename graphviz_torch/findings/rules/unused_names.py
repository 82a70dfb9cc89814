"""Rules about functions and variables of a script that nothing uses."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding
from ...graph.events import UnusedName
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at


@rule("info", reads="end", of=(UnusedName,))
def unused_name(reading: Reading) -> Iterator[Finding]:
    """The script computes a mask, a loss or the end of an episode that it never reads, or defines
    a function of the training, such as `update`, that it never calls.

    ## Why it matters

    A mask that is not used lets padding into the loss, and an average of weights that is not
    updated stays at the first weights. Nothing fails, because the program is complete without them.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(2):
            x = torch.randn(8, 4)
            mask = torch.rand(8, 4).gt(0.5)  # <- reported
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(2):
            x = torch.randn(8, 4)
            mask = torch.rand(8, 4).gt(0.5)
            optimizer.zero_grad()
            (model(x) - x)[mask].square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A function may return more values than a script needs. Name the others `_`, or silence the rule
    at the line.

    ## Not detected

    Only the file of the script is searched, for names that usually belong to a training: functions
    with words such as `loss`, `update` or `reset`, and variables with words such as `mask`, `done`
    or `kl`. Methods of classes with bases other than `nn.Module` are not reported, because a base
    class may call them.

    ## See also

    - [torch.where](https://docs.pytorch.org/docs/stable/generated/torch.where.html)
    """
    for event in reading.events(UnusedName):
        name, where = event.name, event.where
        if event.kind == "variable":
            text = f"{name}, assigned{at(where)}, is never read: it has no effect on the training."
            advice = f"Use {name} where it is meant to act, or name it _ if it is not needed."
        else:
            text = f"{name}(), defined{at(where)}, is never called"
            used = f": {event.owner}{at(event.assigned)} is used without it" if event.owner else ""
            text += f"{used}."
            call = f"{event.owner}.{name}" if event.owner else name
            advice = f"Call {call}() in the training loop, or remove it."
        yield finding(
            "info", text, cause=f"a {event.kind} that nothing uses", advice=advice, where=where
        )
