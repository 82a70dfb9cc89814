"""Rules about learning rates that the program sets by hand, without a scheduler."""

from __future__ import annotations

from typing import Literal

from ....graph import Finding
from ....graph.events import IneffectiveCall
from ....graph.immutable import immutable
from ....graph.units import count_text
from ...rule import finding, rule
from ...words import at

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
