"""Rules about gradients that are cleared or used by a step at the wrong time."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding
from ...graph.events import Event, GradientClearing, OptimizerStep
from ...graph.immutable import immutable
from ...graph.text import listing
from ...graph.units import count_text
from ..graph_reading import Reading
from ..rule import finding, finds, rule
from ..words import at, times


@rule("warning", also=("watch",))
def missing_zero_grad(reading: Reading) -> Iterator[Finding]:
    """An optimizer stepped again with gradients of an earlier step, which were not cleared in
    between.

    ## Why it matters

    `backward()` adds to `.grad`. If the gradients are not cleared, each step uses the sum of all
    gradients so far. The steps become larger and follow outdated gradients, so the loss often
    oscillates or explodes.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
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
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    Gradient accumulation sums the gradients of several backwards before one step, and clears them
    after the step. This is not reported.

    ## Not detected

    Steps of optimizers that are not a `torch.optim.Optimizer` are not detected. Gradients that are
    cleared by hand, with `parameter.grad = None` or `parameter.grad.zero_()`, count as cleared, and
    so do gradients that the program replaces before the step.

    ## See also

    - [torch.optim.Optimizer.zero_grad](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html)
    - [Frequently asked questions](https://docs.pytorch.org/docs/stable/notes/faq.html)
    """
    line = reading.graph.step.stale_gradients
    if line:
        yield finding(
            "warning",
            f"The optimizer's step at {line} used the gradients of an earlier step again, "
            "because they were not cleared in between.",
            cause="gradients not cleared",
            advice="Call optimizer.zero_grad() before backward() runs for the next step.",
            where=line,
        )


@immutable
class DiscardedGradients(Event):
    """A backward pass whose gradients are always cleared before an optimizer step uses them."""


@rule(
    "warning",
    reads="end",
    of=(GradientClearing, DiscardedGradients),
    caused_by=("optimizer-never-stepped",),
)
def zero_grad_before_step(reading: Reading) -> Iterator[Finding]:
    """Gradients were cleared before an optimizer had used them in a step.

    ## Why it matters

    The step finds no gradients and changes nothing, except by weight decay and momentum. Training
    looks as if the learning rate were 0.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.zero_grad()  # <- reported
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    ```

    ## When it is intended

    A program may drop the remaining gradients at the end of an epoch. If this happens once, the
    finding has severity info.

    ## Not detected

    Gradients that are cleared by hand before a step are not detected.

    ## See also

    - [torch.optim.Optimizer.zero_grad](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html)
    - [Taking an optimization step](https://docs.pytorch.org/docs/stable/optim.html#taking-an-optimization-step)
    """
    steps = sum(event.times for event in reading.events(OptimizerStep))
    clearings = reading.events(GradientClearing)
    for backward in reading.events(DiscardedGradients) if steps and not clearings else ():
        yield finding(
            "warning",
            f"The gradients of backward{at(backward.where)} are cleared before any step uses "
            f"them{times(backward)}.",
            cause="gradients cleared before the step",
            advice="Call this backward before the optimizer's step, or add its loss to the "
            "other loss.",
            where=backward.where,
        )
    for event in clearings:
        steps = max(steps, event.steps)
        # optimizer.zero_grad() without any step means that a step is missing.
        few = event.times < steps if steps else event.times < 2 or not event.by_optimizer
        if few and not (steps and event.by_optimizer):
            continue
        call = "optimizer.zero_grad()" if event.by_optimizer else "zero_grad()"
        yield finding(
            # Remaining gradients at the end of an epoch may be dropped on purpose.
            "info" if few else "warning",
            f"{call}{at(event.where)} cleared gradients that no step had used{times(event)}"
            f"{'' if steps else ', and no optimizer ever stepped'}.",
            cause="gradients cleared before the step",
            advice="Call zero_grad() right after each step(): gradients that are cleared "
            "between backward() and step() train nothing."
            if steps
            else "Call optimizer.step() after backward().",
            where=event.where,
        )


@rule("warning")
@immutable
class OptimizerNeverStepped(Event):
    """A backward computes gradients for the parameters of an optimizer that never steps, while
    another optimizer steps.

    ## Why it matters

    The gradients are computed but never used. In a GAN, one of the two networks then keeps its
    initial weights.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    net = nn.ModuleDict({"g": nn.Linear(2, 4), "d": nn.Linear(4, 1)})
    steps = {name: torch.optim.SGD(part.parameters(), lr=0.1) for name, part in net.items()}
    with record(net) as recording:
        for _ in range(3):
            net["d"](net["g"](torch.randn(8, 2)).detach()).mean().backward()  # <- reported
            net.zero_grad()
            net["d"](net["g"](torch.randn(8, 2))).mean().backward()
            steps["g"].step()
            net.zero_grad()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    net = nn.ModuleDict({"g": nn.Linear(2, 4), "d": nn.Linear(4, 1)})
    steps = {name: torch.optim.SGD(part.parameters(), lr=0.1) for name, part in net.items()}
    with record(net) as recording:
        for _ in range(3):
            net["d"](net["g"](torch.randn(8, 2)).detach()).mean().backward()
            steps["d"].step()
            net.zero_grad()
            net["d"](net["g"](torch.randn(8, 2))).mean().backward()
            steps["g"].step()
            net.zero_grad()
    ```

    ## When it is intended

    An optimizer may step only once in many backwards. Record enough backwards to include its step.

    ## Not detected

    A program without any optimizer step is not reported, because it may update parameters by hand.

    ## See also

    - [torch.optim](https://docs.pytorch.org/docs/stable/optim.html)
    """

    parameters: tuple[str, ...] = ()

    def report(self) -> Finding:
        names = listing(self.parameters, last=", ")
        return finding(
            "warning",
            f"backward{at(self.where)} computes gradients for {names}, but the optimizer that "
            "holds them has not stepped so far.",
            cause="an optimizer never steps",
            advice="Call step() of that optimizer after this backward, unless it steps later.",
            where=self.where,
            nodes=self.nodes,
        )


@rule("warning", reads="end")
@immutable
class MixedLosses(Event):
    """An optimizer steps with the gradients of two losses, because the gradients of another
    optimizer's loss were not cleared.

    ## Why it matters

    The gradients of one loss are still in `.grad` when the next backward adds its gradients. The
    optimizer then minimizes the sum of both losses, one of which belongs to the other network. In a
    GAN, the generator then helps the discriminator.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    maker, judge = nn.Linear(2, 4), nn.Linear(4, 1)
    opt_g = torch.optim.SGD(maker.parameters(), lr=0.1)
    opt_d = torch.optim.SGD(judge.parameters(), lr=0.1)
    with record(nn.ModuleDict({"maker": maker, "judge": judge})) as recording:
        judge(maker(torch.randn(8, 2))).mean().backward()  # <- reported
        opt_d.step()
        (-judge(maker(torch.randn(8, 2)))).mean().backward()
        opt_g.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    maker, judge = nn.Linear(2, 4), nn.Linear(4, 1)
    opt_g = torch.optim.SGD(maker.parameters(), lr=0.1)
    opt_d = torch.optim.SGD(judge.parameters(), lr=0.1)
    with record(nn.ModuleDict({"maker": maker, "judge": judge})) as recording:
        judge(maker(torch.randn(8, 2))).mean().backward()
        opt_d.step()
        opt_g.zero_grad()
        (-judge(maker(torch.randn(8, 2)))).mean().backward()
        opt_g.step()
    ```

    ## When it is intended

    A trunk may learn from the losses of several heads, one after the other. Such a finding has
    severity info.

    ## Not detected

    Losses that the program adds before one backward are not reported, because their sum is
    intended.

    ## See also

    - [torch.optim.Optimizer.zero_grad](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html)
    - [DCGAN tutorial](https://docs.pytorch.org/tutorials/beginner/dcgan_faces_tutorial.html)
    """

    # `where` is the line of the backward pass of the first loss, after which another optimizer
    # stepped; `nodes` are the ids of the parameters' nodes.
    optimizer: str = ""
    # True if the second loss reaches parameters that the other optimizer stepped
    through: bool = False
    second: str = ""  # line of the second backward pass
    stepped: str = ""  # line of the optimizer step

    def report(self) -> Finding:
        return finding(
            # A trunk may learn from the losses of two heads, one after the other.
            "warning" if self.through else "info",
            f"{self.optimizer} steps{at(self.stepped)} with the gradients of two losses: those "
            f"of backward{at(self.where)}, after which another optimizer stepped, and those of "
            f"backward{at(self.second)}.",
            cause="gradients of another loss",
            advice=f"Call {self.optimizer}.zero_grad() before the second backward; do nothing "
            "if both losses should train its parameters.",
            where=self.where,
            nodes=self.nodes,
        )


@finds("scheduler-out-of-step", reads="end")
@immutable
class EarlySchedulerStep(Event):
    """A learning rate scheduler that stepped before its optimizer's first step."""

    scheduler: str = ""  # name of the caller's variable
    optimizer: str = ""

    def report(self) -> Finding:
        return finding(
            "warning",
            f"{self.scheduler}.step(){at(self.where)} was called before the first step of "
            f"{self.optimizer}, so the first learning rate of the schedule is never used.",
            cause="scheduler stepped first",
            advice=f"Call {self.scheduler}.step() after the optimizer's step().",
            where=self.where,
        )


@rule("info", reads="end")
@immutable
class UnevenAccumulation(Event):
    """A few steps use the gradients of more or fewer backwards than the other steps.

    ## Why it matters

    The usual cause is that the number of batches in an epoch is not a multiple of the number that
    one step accumulates.

    If no step follows the last batches, their gradients are added to those of the next epoch's
    first step, which is then too large. If a step follows them, but their losses are divided by the
    full number, this step is too small.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for epoch in range(3):
            for i in range(5):
                loss = model(torch.randn(8, 4)).square().mean() / 2
                loss.backward()  # <- reported
                if i % 2 == 1:
                    optimizer.step()
                    optimizer.zero_grad()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for epoch in range(3):
            for i in range(6):  # drop_last=True, or as many batches as needed
                loss = model(torch.randn(8, 4)).square().mean() / 2
                loss.backward()
                if i % 2 == 1:
                    optimizer.step()
                    optimizer.zero_grad()
    ```

    ## When it is intended

    A last step with fewer batches is correct if its losses are divided by the number of its own
    batches.

    ## Not detected

    Nothing is reported if the numbers of backwards per step have more than two different values, or
    if recording was paused between steps.

    ## See also

    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    # `where` is the line that calls backward.
    usual: int = 0  # number of backward passes before most steps
    backwards: int = 0  # number of backward passes before the unusual steps
    count: int = 0  # number of unusual steps
    stepped: str = ""  # line of the optimizer step

    def report(self) -> Finding:
        if self.backwards > self.usual:
            why = "gradients of earlier batches, which no step had used, were added to them"
            advice = "Step after the last batch of an epoch, too, call zero_grad() before the "
            advice += "next epoch, or leave out the last batches."
        else:
            why = "fewer batches were accumulated, as at the end of an epoch"
            advice = "Divide the losses of such a step by the number of its own batches."
        return finding(
            "info",
            f"{count_text(self.count, 'step')}{at(self.stepped)} used the gradients of "
            f"{count_text(self.backwards, 'backward')}{at(self.where)}, while the other steps "
            f"used those of {self.usual}: {why}.",
            cause="uneven accumulation",
            advice=advice,
            where=self.where,
        )
