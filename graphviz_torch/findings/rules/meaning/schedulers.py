"""Rules about learning rate schedulers that do not step together with their optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import IneffectiveCall
from ....graph.immutable import immutable
from ...graph_reading import Reading
from ...rule import finding, finds, rule
from ...words import at


@immutable
class SchedulerStepsTooOften(IneffectiveCall):
    """A learning rate scheduler that steps more often than its optimizer."""

    scheduler: str = ""
    optimizer: str = ""
    count: int = 0  # number of scheduler steps
    steps: int = 0  # number of optimizer steps


@immutable
class SchedulerPastEnd(IneffectiveCall):
    """A cosine scheduler that runs past its end, where the learning rate rises again."""

    scheduler: str = ""
    optimizer: str = ""
    count: int = 0  # number of scheduler steps
    end: int = 0  # T_max of the scheduler


@immutable
class NeverSteppedScheduler(IneffectiveCall):
    """A learning rate scheduler that never stepped, although its optimizer did."""

    scheduler: str = ""
    optimizer: str = ""
    steps: int = 0  # number of optimizer steps
    assigned: str = ""  # line that assigns the scheduler


@immutable
class RestartedSchedule(IneffectiveCall):
    """A scheduler at its start, whose optimizer has loaded the state of an earlier training.

    `where` is the line that loads the optimizer's state.
    """

    scheduler: str = ""
    optimizer: str = ""
    assigned: str = ""  # line that assigns the scheduler


@immutable
class ContinuedSchedule(IneffectiveCall):
    """A scheduler that continues an earlier training, whose optimizer begins without a state.

    `where` is the line that loads the scheduler's state.
    """

    scheduler: str = ""
    optimizer: str = ""
    last: int = 0  # number of the scheduler's steps before
    stepped: str = ""  # line of the optimizer's first step


@rule(
    "warning",
    reads="end",
    of=(
        SchedulerStepsTooOften,
        SchedulerPastEnd,
        NeverSteppedScheduler,
        RestartedSchedule,
        ContinuedSchedule,
    ),
)
def scheduler_out_of_step(reading: Reading) -> Iterator[Finding]:
    """A learning rate scheduler is out of step with its optimizer: it steps before the optimizer's
    first step, it steps more often than the optimizer, it or its optimizer never steps, its
    schedule has ended, or only one of the two has loaded the state of an earlier training.

    ## Why it matters

    A schedule counts the scheduler's own steps. If the scheduler steps too often, the learning rate
    falls too fast. If the optimizer never steps, the schedule has no effect. If the scheduler steps
    first, the first learning rate is skipped. After its end, a cosine schedule rises again.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            for _ in range(2):
                scheduler.step()  # <- reported
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer = torch.optim.Adam(model.parameters())
    with record(model) as recording:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            scheduler.step()  # <- reported
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    with record(model) as recording:
        for _ in range(3):
            scheduler.step()  # <- reported
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            scheduler.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with record(model) as recording:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            scheduler.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            scheduler.step()
    ```

    ## When it is intended

    A scheduler may count samples or batches instead of optimizer steps.

    ## Not detected

    A scheduler that steps too rarely is not reported, because stepping once per epoch is as common
    as stepping once per batch. That a scheduler never steps is known only at the end of a program,
    so only `graphviz-torch run` reports it, after five steps of the optimizer.

    ## See also

    - [How to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """
    for event in reading.events(SchedulerStepsTooOften):
        yield finding(
            "warning",
            f"{event.scheduler} stepped {event.count} times{at(event.where)}, while "
            f"{event.optimizer} stepped {event.steps} times: the learning rate changes faster "
            "than intended.",
            cause="a scheduler steps more often than its optimizer",
            advice=f"Call {event.scheduler}.step() once for each step of the optimizer, or once "
            "for each epoch.",
            where=event.where,
        )
    for still in reading.events(NeverSteppedScheduler):
        yield finding(
            "warning",
            f"The scheduler {still.scheduler}{at(still.assigned)} never stepped, while "
            f"{still.optimizer} stepped {still.steps} times{at(still.where)}: the learning rate "
            "stayed at its first value.",
            cause="a scheduler that never steps",
            advice=f"Call {still.scheduler}.step() after each step of the optimizer, or after each "
            "epoch.",
            where=still.where,
        )
    for again in reading.events(RestartedSchedule):
        yield finding(
            "warning",
            f"{again.optimizer} has loaded the state of an earlier training{at(again.where)}, but "
            f"its scheduler {again.scheduler}{at(again.assigned)} starts at step 0: the schedule "
            "of the learning rate begins again, with its warm-up.",
            cause="a scheduler whose state was not loaded",
            advice=f"Save {again.scheduler}.state_dict() in the checkpoint, too, and load it after "
            "the optimizer's state.",
            where=again.where or again.assigned,
        )
    for going in reading.events(ContinuedSchedule):
        yield finding(
            "warning",
            f"The scheduler {going.scheduler} continues{at(going.where)} at step {going.last}, but "
            f"its optimizer {going.optimizer}{at(going.stepped)} starts without the state of the "
            "earlier training, such as its moments: the first steps are too large or in other "
            "directions.",
            cause="an optimizer whose state was not loaded",
            advice=f"Save {going.optimizer}.state_dict() in the checkpoint, too, and load it "
            "before the scheduler's state.",
            where=going.where or going.stepped,
        )
    for end in reading.events(SchedulerPastEnd):
        yield finding(
            "info",
            f"{end.scheduler}{at(end.where)} is past its end: T_max is {end.end}, but the "
            f"scheduler stepped {end.count} times. After T_max steps, the learning rate of "
            f"{end.optimizer} rises again.",
            cause="a scheduler past its end",
            advice="Set T_max to the number of times that the scheduler will step.",
            where=end.where,
        )


@finds("scheduler-out-of-step", reads="end")
@immutable
class UnusedScheduler(IneffectiveCall):
    """A scheduler that steps while its optimizer never does."""

    scheduler: str = ""
    count: int = 0  # number of scheduler steps

    def report(self) -> Finding:
        return finding(
            "warning",
            f"{self.scheduler} stepped {self.count} times{at(self.where)}, but its optimizer "
            "never stepped, so its rates have no effect.",
            cause="a scheduler of an optimizer that never steps",
            advice="Construct the scheduler with the optimizer that steps.",
            where=self.where,
        )
