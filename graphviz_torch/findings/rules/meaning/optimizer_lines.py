"""Rules about the code of optimizers that the program itself defines."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ....graph.text import listing
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at


@immutable
class LineOfOneParameter(Event):
    """A line of an optimizer's step that changes one parameter, while another line changes all.

    `nodes` is the id of the parameter's node.
    """

    optimizer: str = ""
    parameters: int = 0  # number of parameters
    other: str = ""  # line that changes all of them


@rule("warning", reads="end", of=(LineOfOneParameter,))
def update_outside_loop(reading: Reading) -> Iterator[Finding]:
    """A line in the step of the program's own optimizer changes only one parameter, because it is
    outside of the loop over the parameters.

    ## Why it matters

    After a loop, the loop variable still refers to the last parameter. A weight decay or a
    projection outside of the loop is therefore applied to this parameter alone, and no error is
    raised.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Descent(torch.optim.SGD):
        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                p.sub_(0.1 * p.grad)
            p.mul_(0.99)  # <- reported


    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = Descent(model.parameters())
    with record(model) as recording:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Descent(torch.optim.SGD):
        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                p.sub_(0.1 * p.grad)
                p.mul_(0.99)


    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = Descent(model.parameters())
    with record(model) as recording:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    An optimizer may treat one parameter on its own, such as a temperature, or the last layer's
    weight. A parameter is not reported if no other parameter has as many dimensions.

    ## Not detected

    Only calls in the program's own code that change a parameter in place are checked.

    ## See also

    - [torch.optim](https://docs.pytorch.org/docs/stable/optim.html)
    """
    for event in reading.events(LineOfOneParameter):
        names = listing(reading.call(node) for node in event.nodes) or "one parameter"
        yield finding(
            "warning",
            f"Each step of {event.optimizer} changes only {names}{at(event.where)}, but all "
            f"{event.parameters} parameters{at(event.other)}.",
            cause="an update outside of the loop over the parameters",
            advice=f"Move the update{at(event.where)} into the loop over the parameters.",
            where=event.where,
            nodes=event.nodes,
        )
