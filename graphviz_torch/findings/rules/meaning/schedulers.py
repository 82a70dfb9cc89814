"""Rules about learning rates: schedulers, and rates that the program sets by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ....graph import Finding
from ....graph.events import IneffectiveCall
from ....graph.immutable import immutable
from ....graph.units import count_text
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


# Place or course of the rate: an attribute of the optimizer, its defaults, one of several groups,
# a rate that falls to zero and rises again, one that begins again, or one that has become tiny.
HandKind = Literal["attribute", "defaults", "group", "rise", "restart", "vanished"]


@rule("warning", reads="end")
@immutable
class RateSetByHand(IneffectiveCall):
    """A learning rate that the program sets by hand has no effect, reaches only one of several
    parameter groups, starts again after a fall or a warm-up, or becomes tiny.

    ## Why it matters

    A step uses the learning rate of each parameter group, `optimizer.param_groups[i]["lr"]`. A rate
    that is stored elsewhere has no effect, and a rate that is stored in one group does not change
    the steps of the others. No error is raised.

    A rate that starts again, or becomes tiny, was often computed from a wrong number of steps.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for step in range(4):
            optimizer.lr = 0.1 / (1 + step)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for step in range(4):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + step)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A program may keep the rate of one group constant, let the rate rise and fall in cycles, or
    start another warm-up for a new task. Cycles and repeated warm-ups are reported as a note.

    ## Not detected

    A group may keep its rate if one of the groups has an option of the program, such as `fix_lr`.

    If an optimizer has a scheduler, its rates are checked only for becoming tiny. A rate that stays
    constant although the program assigns it in each step is not reported.

    ## See also

    - [How to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """

    what: HandKind = "attribute"
    optimizer: str = ""
    groups: int = 0  # number of parameter groups
    assigned: str = ""  # line that sets the rate
    rate: float = 0.0  # the rate that no step reads, or the largest rate
    count: int = 0  # number of steps of the fall, of the rise, or with a tiny rate
    steps: int = 0  # number of steps of the optimizer

    def report(self) -> Finding:
        name, where = self.optimizer, at(self.assigned)
        groups = f'for group in {name}.param_groups: group["lr"] = ...'
        text = {
            "attribute": f"{name}.lr is set to {self.rate:.3g}{where}, but no step reads it: the "
            "learning rate of the parameter groups did not change",
            "defaults": f'{name}.defaults["lr"] is set to {self.rate:.3g}{where}, but no step '
            "reads it: the learning rate of the parameter groups did not change",
            "group": f"The learning rate of group 0 of {self.groups} in {name} is set{where} in "
            "each step, and the other groups keep the rate that group 0 began with or reached",
            "rise": f"The learning rate of {name}, which is set{where}, falls to almost 0 in "
            f"{count_text(self.count, 'step')}, and rises again after that",
            "restart": f"The learning rate of {name}, which is set{where}, rises, and begins again "
            f"every {count_text(self.count, 'step')}, as a warm-up that is repeated in each epoch",
            "vanished": f"The last {count_text(self.count, 'step')} change almost nothing: the "
            f"learning rate of {name} has fallen to less than a billionth of its largest value, "
            f"{self.rate:.3g}",
        }[self.what]
        advice = {
            "attribute": f"Set it in the parameter groups: {groups}",
            "defaults": f"Set it in the parameter groups: {groups}",
            "group": f"Set it in all groups: {groups}",
            "rise": "Compute it from the number of all steps, or keep it after the end.",
            "restart": "Compute it from the number of all steps so far, not of those in the epoch.",
            "vanished": "Change the rate once for each epoch, or use a smaller factor.",
        }[self.what]
        return finding(
            "info" if self.what in ("rise", "restart") else "warning",
            f"{text}, in {count_text(self.steps, 'step')}{at(self.where)}.",
            cause=f"a learning rate set by hand ({self.what})",
            advice=advice,
            where=self.where,
        )
