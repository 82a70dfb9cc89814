"""Rules about optimizers: parameter groups, learning rates, and optimizers that are re-created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ....graph import Finding
from ....graph.events import IneffectiveCall, NewLeaves
from ....graph.immutable import immutable
from ....graph.text import listing
from ....graph.units import count_text
from ...graph_reading import Reading
from ...rule import finding, finds, rule
from ...words import at
from ..cuts import match_cuts

RecreatedKind = Literal["optimizer", "scheduler", "scaler"]
# Kind of learning rate: 0 in all parameter groups, 0 in one group, 0 in all groups since some step,
# or negative.
RateKind = Literal["all", "group", "end", "negative"]


@rule("warning", reads="end", also=("watch",))
@immutable
class RecreatedOptimizer(IneffectiveCall):
    """An optimizer with momentum, a scheduler or a gradient scaler is re-created for each step and
    so loses its state.

    ## Why it matters

    Adam, and SGD with momentum, use averages of earlier gradients. In an optimizer that is created
    in each step, momentum has no effect, and Adam moves all elements by the same amount. A
    scheduler that is re-created stays at its first rate.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        for _ in range(3):
            optimizer = torch.optim.Adam(model.parameters())
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    with record(model) as recording:
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    In meta-learning, an inner loop may create a new optimizer for each task.

    ## Not detected

    An optimizer that is re-created once or twice is not reported. One that is re-created for each
    epoch is reported with severity info, because each epoch may train another task.

    ## See also

    - [Constructing an optimizer](https://docs.pytorch.org/docs/stable/optim.html#constructing-it)
    """

    what: RecreatedKind = "optimizer"
    name: str = ""
    count: int = 0  # number of steps that began with a new object
    steps: int = 0  # number of all steps, if it is larger

    def report(self) -> Finding:
        steps = f"{self.name}, which steps{at(self.where)}, was re-created for each of "
        if self.steps:
            steps = f"{self.name}, which steps{at(self.where)}, was a new optimizer without "
            steps += f"state in {self.count} of {self.steps} steps: its moments start at zero "
            return finding(
                "info",
                f"{steps}each time.",
                cause="an optimizer that is re-created",
                advice="Create the optimizer once, before the loop over epochs.",
                where=self.where,
            )
        if self.what != "optimizer":
            steps = f"The {self.what} {self.name} of the step{at(self.where)} was re-created for "
            steps += "each of "
        return finding(
            "warning",
            f"{steps}{self.count} steps: {_LOST_STATE[self.what]}.",
            cause=f"{'a' if self.what[0] == 's' else 'an'} {self.what} that is re-created",
            advice=f"Create the {self.what} once, before the loop.",
            where=self.where,
        )


_LOST_STATE = {
    "optimizer": "its moments start at zero each time",
    "scheduler": "it starts at its first rate each time, and never reaches the next",
    "scaler": "it starts with its first scale each time, and never adapts it",
}


@immutable
class StepWithoutGradients(IneffectiveCall):
    """Steps of an optimizer while none of its parameters has a gradient.

    `nodes` are the ids of the parameters' nodes.
    """

    optimizer: str = ""
    count: int = 0  # number of steps


@rule("warning", reads="end", of=(StepWithoutGradients,), caused_by=("checkpoint-differs",))
def step_without_gradients(reading: Reading) -> Iterator[Finding]:
    """An optimizer steps although none of its parameters has a gradient.

    ## Why it matters

    The step changes nothing, or only applies weight decay and earlier momentum. The optimizer's
    network is not trained.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    maker, judge = nn.Linear(6, 6), nn.Linear(6, 1)
    first = torch.optim.Adam(maker.parameters())
    second = torch.optim.Adam(judge.parameters())
    with record(judge) as recording:
        for _ in range(3):
            judge(maker(torch.randn(8, 6)).detach()).mean().backward()
            first.step()  # <- reported
            second.step()
            second.zero_grad()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    maker, judge = nn.Linear(6, 6), nn.Linear(6, 1)
    first = torch.optim.Adam(maker.parameters())
    second = torch.optim.Adam(judge.parameters())
    with record(judge) as recording:
        for _ in range(3):
            judge(maker(torch.randn(8, 6))).mean().backward()
            first.step()
            second.step()
            first.zero_grad()
            second.zero_grad()
    ```

    ## When it is intended

    One of several networks may be trained later, after a warm-up. Do not step its optimizer until
    then, so that the optimizer's state does not change.

    ## Not detected

    An optimizer is not reported if any of its parameters has a gradient.

    ## See also

    - [torch.optim](https://docs.pytorch.org/docs/stable/optim.html)
    """
    if reading.leaf_losses:
        return
    reported = {parameter.node for _, parameter in match_cuts(reading)}
    for event in reading.events(StepWithoutGradients):
        if event.nodes and reported.issuperset(event.nodes):
            continue  # reported as cut-gradient
        if (copies := reading.copied_parameters) is not None:
            yield _copies_with_gradients(event, copies)
            continue
        yield finding(
            "warning",
            f"{event.optimizer} stepped {event.count} times{at(event.where)}, but none of its "
            "parameters had a gradient, because no backward had reached them.",
            cause="steps without gradients",
            where=event.where,
            nodes=event.nodes,
        )


def _copies_with_gradients(event: StepWithoutGradients, copies: NewLeaves) -> Finding:
    """Return the finding about an optimizer whose parameters were copied before the forward."""
    times = count_text(event.count, "time")
    return finding(
        "warning",
        f"{event.optimizer} stepped {times}{at(event.where)}, and none of its parameters had a "
        f"gradient: the gradients went to copies, new leaves that {copies.maker}{at(copies.where)} "
        "created.",
        cause="the copies have the gradients",
        advice=f"Call {copies.maker} once, before the loop, and pass the copies to the "
        "optimizer. Or use the parameters themselves in the forward.",
        where=copies.where,
        nodes=copies.nodes,
    )


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


@rule("warning", reads="end", also=("watch",))
@immutable
class ZeroLearningRate(IneffectiveCall):
    """An optimizer, or one of its parameter groups, steps with a learning rate of 0, which changes
    nothing, or with a negative learning rate, which increases the loss.

    ## Why it matters

    Such rates usually come from a schedule that is past its end, that counts steps instead of
    epochs, or whose factor is rounded to 0.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A program may freeze a parameter group with a rate of 0; that finding has severity info.

    ## Not detected

    Learning rates that are small but not 0 are not reported.

    ## See also

    - [How to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """

    what: RateKind = "all"
    optimizer: str = ""
    group: int = 0  # index of the group
    groups: int = 0  # number of groups of the optimizer
    count: int = 0  # number of steps with such a rate
    steps: int = 0  # number of all optimizer steps
    scheduler: str = ""  # the only scheduler of the optimizer; "" for none and several
    scheduled: str = ""  # line that calls the scheduler's `step`

    def report(self) -> Finding:
        return finding(
            "info" if self.what == "group" else "warning",
            _RATES[self.what].format(
                name=self.optimizer,
                at=at(self.where),
                count=self.count,
                steps=self.steps,
                group=self.group,
                groups=self.groups,
            ),
            cause="a learning rate below 0" if self.what == "negative" else "a learning rate of 0",
            advice=""
            if self.what == "group"
            else (
                f"The scheduler {self.scheduler}, which steps{at(self.scheduled)}, has reached "
                "the end of its schedule: make the schedule as long as the training, or step the "
                "scheduler as often as the schedule expects."
                if self.scheduler
                else f"Check the code that sets lr of {self.optimizer}: a schedule may be past "
                "its end, or count epochs although it is stepped for each batch."
            ),
            where=self.where,
        )


_RATES = {
    "all": "{name} stepped{at} with a learning rate of 0, in each of {count} steps, which "
    "change nothing.",
    "end": "{name} stepped{at} with a learning rate of 0 in the last {count} of {steps} steps, "
    "which change nothing.",
    "group": "Group {group} of {groups} in {name}, which steps{at}, had a learning rate of 0 in "
    "each of {count} steps: its parameters do not change.",
    "negative": "{name} stepped{at} with a learning rate below 0, in {count} of {steps} steps, "
    "which increase the loss.",
}


@finds("epsilon-underflow", reads="end")
@immutable
class VanishedEpsilon(IneffectiveCall):
    """An optimizer whose eps rounds to 0 in float16.

    The optimizer's step then divides by 0 if a gradient is 0.
    """

    # `nodes` are the ids of the nodes of parameters in float16.
    optimizer: str = ""
    epsilon: float = 0.0

    def report(self) -> Finding:
        return finding(
            "warning",
            f"The eps of {self.optimizer}, which steps{at(self.where)}, is {self.epsilon:g}, "
            "which is 0 in float16: a step divides by 0 for gradients that were 0.",
            cause="a number that underflows in float16",
            advice="Keep the parameters in float32 and compute under torch.autocast, or pass "
            "eps=1e-4.",
            where=self.where,
            nodes=self.nodes,
        )
