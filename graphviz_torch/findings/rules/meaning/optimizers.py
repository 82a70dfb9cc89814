"""Rules about optimizers that are re-created, or whose steps change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ....graph import Finding
from ....graph.events import IneffectiveCall, NewLeaves
from ....graph.immutable import immutable
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
