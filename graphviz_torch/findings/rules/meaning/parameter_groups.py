"""Rules about the parameter groups of optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import IneffectiveCall
from ....graph.immutable import immutable
from ....graph.text import listing
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at


@rule("info", reads="end")
@immutable
class EmptyParameterGroup(IneffectiveCall):
    """A parameter group of an optimizer is empty, so its options apply to nothing.

    ## Why it matters

    Groups are often selected by name, such as "LayerNorm" or "bias". If no name matches, the group
    is empty, and its learning rate or weight decay applies to nothing.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    rest = list(model.parameters())
    none = [p for n, p in model.named_parameters() if "LayerNorm" in n]
    groups = [{"params": rest, "weight_decay": 0.1}, {"params": none, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    rest = [p for n, p in model.named_parameters() if "bias" not in n]
    none = [p for n, p in model.named_parameters() if "bias" in n]
    groups = [{"params": rest, "weight_decay": 0.1}, {"params": none, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    A script may be written for several models, some of which have no such parameters.

    ## Not detected

    Groups that contain the wrong parameters are not detected.

    ## See also

    - [Per-parameter options](https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options)
    """

    optimizer: str = ""
    group: int = 0  # index of the group
    groups: int = 0  # number of groups of the optimizer

    def report(self) -> Finding:
        return finding(
            "info",
            f"Group {self.group} of {self.groups} in {self.optimizer}, which "
            f"steps{at(self.where)}, is empty: no parameter matched, so its options apply to "
            "nothing.",
            cause="an empty group",
            advice="Compare the names that select the parameters with "
            "dict(model.named_parameters()).",
            where=self.where,
        )


@rule("warning", reads="end")
@immutable
class UnknownGroupOption(IneffectiveCall):
    """A parameter group has an option that its optimizer does not know, such as `learning_rate`, so
    that the option has no effect.

    ## Why it matters

    An optimizer accepts any option in a parameter group, and reads only its own. The parameters of
    the group get the default of the option that was meant, and no error is raised.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    groups = [{"params": [model.weight], "learning_rate": 0.5}, {"params": [model.bias]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    A program may store numbers of its own in a group, such as the factor of a schedule.

    ## Not detected

    An option is reported only if its name resembles that of a known option, or is a usual name of
    one, such as `wd`, and if the functions that call the step do not name it again. Optimizers that
    are not in `torch.optim` are not checked.

    ## See also

    - [Per-parameter options](https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options)
    """

    optimizer: str = ""
    owner: str = ""  # class of the optimizer
    option: str = ""
    meant: str = ""  # the option that was probably meant
    group: int = 0  # index of the group
    groups: int = 0  # number of groups of the optimizer
    value: str = ""  # value of the option
    used: str = ""  # value of the option that was meant

    def report(self) -> Finding:
        return finding(
            "warning",
            f"Group {self.group} of {self.groups} in {self.optimizer}, which "
            f"steps{at(self.where)}, has the option {self.option}={self.value}, which "
            f"{self.owner} does not know: its {self.meant} is {self.used}.",
            cause="an unknown option of a parameter group",
            advice=f'Pass "{self.meant}" in place of "{self.option}".',
            where=self.where,
        )


@immutable
class DecayedNorms(IneffectiveCall):
    """Biases and norm weights in a parameter group with weight decay, while another has none.

    `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    group: int = 0  # index of the group
    groups: int = 0  # number of groups of the optimizer
    decay: float = 0.0  # weight decay of the group


@rule("info", reads="end", of=(DecayedNorms,))
def weight_decay_on_norms(reading: Reading) -> Iterator[Finding]:
    """A parameter group with weight decay contains biases or norm parameters, although another
    group of the optimizer has no weight decay.

    ## Why it matters

    The parameters of a norm layer are often named only "weight", so a selection by names such
    as "LayerNorm" misses them. Weight decay then pulls the scales of the norm towards 0.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    biases = [p for n, p in model.named_parameters() if "bias" in n or "LayerNorm" in n]
    others = [p for n, p in model.named_parameters() if not ("bias" in n or "LayerNorm" in n)]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    biases = [p for n, p in model.named_parameters() if p.ndim < 2]
    others = [p for n, p in model.named_parameters() if p.ndim >= 2]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    Weight decay of all parameters may be intended. An optimizer is not reported if all of its
    groups have weight decay.

    ## Not detected

    Groups that all have the same weight decay are not reported.

    ## See also

    - [AdamW](https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html)
    - [Per-parameter options](https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options)
    """
    for event in reading.events(DecayedNorms):
        names = listing(reading.call(node) for node in event.nodes)
        if event.nodes:
            yield finding(
                "info",
                f"Group {event.group} of {event.groups} in {event.optimizer}, which "
                f"steps{at(event.where)}, applies weight decay of {event.decay:g} to {names}. "
                "Another group exempts biases and norms from weight decay.",
                cause="biases and norms that decay",
                advice="Select these parameters by their number of dimensions (p.ndim < 2) "
                "rather than by names.",
                where=event.where,
                nodes=event.nodes,
            )


@immutable
class SharedParameters(IneffectiveCall):
    """Parameters that are in two optimizers, both of which step.

    `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    other: str = ""  # name of the other optimizer
    count: int = 0  # number of shared parameters


@rule("info", reads="end", of=(SharedParameters,))
def parameter_in_two_optimizers(reading: Reading) -> Iterator[Finding]:
    """Two optimizers contain the same parameter, and both step. Each of them changes the parameter
    with its own moments and learning rate.

    ## Why it matters

    Both optimizers change the parameter in each step, independently of each other. The parameter
    moves about twice as far, and the learning rate schedule of one optimizer does not affect the
    other.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.Sequential(body, head)
    first = torch.optim.Adam(model.parameters())
    second = torch.optim.Adam(head.parameters())
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        first.step()
        second.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.Sequential(body, head)
    first = torch.optim.Adam(body.parameters())
    second = torch.optim.Adam(head.parameters())
    with record(model) as recording:
        model(torch.randn(8, 6)).square().mean().backward()
        first.step()
        second.step()
    ```

    ## When it is intended

    If training has phases, and only one of the two optimizers steps in each phase, nothing is
    reported.

    ## Not detected

    Two parameters that share memory are not recognized as the same.

    ## See also

    - [torch.optim](https://docs.pytorch.org/docs/stable/optim.html)
    """
    for event in reading.events(SharedParameters):
        # Two optimizers with the same variable name, as in a function that steps several
        # optimizers, cannot be distinguished.
        if event.nodes and event.other != event.optimizer:
            yield finding(
                "info",
                f"{event.optimizer}, which steps{at(event.where)}, and {event.other} both hold "
                f"{listing(reading.call(node) for node in event.nodes)}, and both steps change "
                "these values.",
                cause="a parameter of two optimizers",
                where=event.where,
                nodes=event.nodes,
            )
