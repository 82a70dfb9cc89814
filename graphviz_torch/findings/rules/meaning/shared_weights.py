"""Rules about weights that layers, or a model and its reference, share by mistake."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import Event
from ....graph.immutable import immutable
from ....graph.text import listing
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at


@rule("info", reads="end")
@immutable
class RepeatedLayer(Event):
    """A list of layers contains a single layer several times, so all its layers share one set of
    weights.

    ## Why it matters

    `[layer] * 6` and `ModuleList([layer for _ in range(6)])` do not copy the layer. The model has
    the depth of six layers and the parameters of one.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(4, 4)] * 3)  # <- reported

        def forward(self, x):
            return self.layers(x)


    model = Net()
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x):
            return self.layers(x)


    model = Net()
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
    ```

    ## When it is intended

    Some models share the weights of all layers on purpose, such as ALBERT and recurrent networks
    over depth.

    ## Not detected

    Layers that are shared between different lists, and lists with several different layers, are not
    reported.

    ## See also

    - [ModuleList](https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html)
    """

    # `where` is the line that creates the list.
    container: str = ""  # path of the list
    count: int = 0  # number of times that the list contains the module
    layer: str = ""  # class of the module

    def report(self) -> Finding:
        name = self.container or "The model"
        return finding(
            "info",
            f"{name}{f', set{at(self.where)},' if self.where else ''} contains one {self.layer} "
            f"{self.count} times: its layers share one set of weights.",
            cause="one layer several times",
            advice="Create a layer for each entry: [Layer(...) for _ in range(n)], or "
            "copy.deepcopy(layer).",
            where=self.where,
        )


@immutable
class ReferenceForward(Event):
    """Calls of a module without gradients that repeat its calls with gradients.

    Arguments and weights are the same. `where` is the outermost line by which the call stack of the
    call without gradients differs from that of the other call.
    """

    module: str = ""  # path of the module; "" for the model
    first: str = ""  # the corresponding line in the call stack of the call with gradients
    steps: int = 0  # number of optimizer steps with such calls


@rule("info", reads="end", of=(ReferenceForward,))
def reference_is_the_model(reading: Reading) -> Iterator[Finding]:
    """In each step a model runs twice with the same weights and arguments, once of them without
    gradients.

    ## Why it matters

    The second result is the first one again. If it is meant as the result of a reference, a teacher
    or a target network, that network is the trained model itself: differences between the two are
    always 0, ratios always 1, and the term of the loss that compares them is constant.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    policy = nn.Linear(4, 3)
    reference = policy
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with record(policy) as recording:
        for _ in range(4):
            x, chosen = torch.randn(8, 4), torch.randint(3, (8, 1))
            log_probability = policy(x).log_softmax(-1).gather(1, chosen)
            with torch.no_grad():
                before = reference(x).log_softmax(-1).gather(1, chosen)  # <- reported
            loss = -F.logsigmoid(log_probability - before).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import copy

    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    policy = nn.Linear(4, 3)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with record(policy) as recording:
        for _ in range(4):
            x, chosen = torch.randn(8, 4), torch.randint(3, (8, 1))
            log_probability = policy(x).log_softmax(-1).gather(1, chosen)
            with torch.no_grad():
                before = reference(x).log_softmax(-1).gather(1, chosen)
            loss = -F.logsigmoid(log_probability - before).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## When it is intended

    A policy gradient with one step per batch compares the policy with itself on purpose; `detach()`
    of the first result saves the second run.

    ## Not detected

    Calls are compared if they happen between the same two steps of the optimizers, get the same
    memory as arguments, return equal values, and repeat in three steps.

    ## See also

    - [copy.deepcopy](https://docs.python.org/3/library/copy.html#copy.deepcopy)
    """
    every = reading.events(ReferenceForward)
    for event in every[:1]:
        others = listing(other.where for other in every[1:])
        also = f" (as do those at {others})" if others else ""
        name = event.module or "the model"
        yield finding(
            "info",
            f"The call of {name}{at(event.where)}, without gradients{also}, repeats its call"
            f"{at(event.first)} with the same weights and arguments, in {event.steps} steps: both "
            "are the same model, so a difference between them is always 0.",
            cause="a reference that is the same model",
            advice="If a reference or target model is meant, use a frozen copy: "
            "copy.deepcopy(model).requires_grad_(False). Otherwise use detach() of the first "
            "result.",
            where=event.where,
        )
