"""Rules about forwards without a backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graph import Finding, Graph
from ...graph.events import Event, OptimizerStep
from ...graph.immutable import immutable
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

FORWARD_ALONE = "no backward"  # cause of findings that pictures of a forward do not mark


@rule("warning", reads="recording")
def no_backward(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """A forward with gradients was recorded, but no backward ran.

    ## Why it matters

    Nothing learns. The graph of the forward costs memory and time, and is freed without having been
    used.

    ## Example

    ```python
    import torch
    from graphviz_torch import record

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        loss = model(torch.ones(8, 4)).square().mean()  # <- reported
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from graphviz_torch import record

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
    ```

    ## When it is intended

    A program may record only a forward, for example for a picture. The finding then has severity
    info; it is a warning if an optimizer steps. A program that sets `.grad` itself needs no
    backward, so nothing is reported if a parameter has a gradient.

    ## Not detected

    Forwards under `torch.no_grad()`, and forwards whose graphs were freed before the recording
    ended, are not reported.

    ## See also

    - [torch.Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html)
    """
    readings = [Reading(graph) for graph in graphs]
    if any(each.ran or each.graph.failure is not None for each in readings):
        return
    reading = next((each for each in readings if each.graph.outputs), None)
    if reading is None or not reading.graph.modules:
        return  # a traced tensor, not a recorded forward
    ends = tuple(dict.fromkeys(node for node, _ in reading.graph.outputs))
    where = next((line for end in ends if (line := reading.graph.nodes[end].where)), "")
    steps = [step for each in readings for step in each.events(OptimizerStep)]
    if any(row.has_grad for graph in graphs for row in graph.parameters):
        return  # the program set the gradients itself
    stepped = f", and {steps[0].optimizer} steps{at(steps[0].where)} nevertheless" if steps else ""
    yield finding(
        "warning" if steps else "info",
        f"No backward ran from {reading.call(ends[0])}{at(where)}{stepped}: nothing learns.",
        cause=FORWARD_ALONE,
        advice="Call backward() on the loss. If nothing should learn, run the forward under "
        "torch.no_grad().",
        where=where,
        nodes=ends,
    )


@rule("warning", reads="end")
@immutable
class DiscardedForward(Event):
    """The result of a forward is dropped: no backward uses it, and its values are not read.

    ## Why it matters

    If a program writes `loss = ...` instead of `loss += ...` for a second term, the first term is
    computed but trains nothing. In a loop over batches or terms, only the last one trains.

    ## Example

    ```python
    import torch
    from graphviz_torch import record

    model = torch.nn.Linear(4, 1)
    x = torch.ones(8, 4)
    with record(model) as recording:
        for _ in range(3):
            loss = (model(x) - 1).square().mean()  # <- reported
            loss = model(-x).square().mean()
            loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from graphviz_torch import record

    model = torch.nn.Linear(4, 1)
    x = torch.ones(8, 4)
    with record(model) as recording:
        for _ in range(3):
            loss = (model(x) - 1).square().mean()
            loss = loss + model(-x).square().mean()
            loss.backward()
    ```

    ## When it is intended

    A program may read only the value of the result, such as a validation loss with `item()`. The
    finding then has severity info: under `torch.no_grad()`, the forward needs less memory.

    ## Not detected

    A result that a variable still keeps is not reported. A line of which a backward uses results
    is reported only if it uses one of several results in each step.

    ## See also

    - [torch.no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html)
    """

    # `where` is the line that calls the module. If a forward that was used has the same line,
    # `where` is the outermost line by which the call stacks differ.
    module: str = ""  # path of the module; "" for the model
    count: int = 0  # number of calls of forward
    # True if a value computed from a result of these calls was read, detached or compared
    was_read: bool = False
    in_training: bool = True  # True if the module was in train mode
    # True if a backward ran through one of the line's forwards in each of the `steps`
    in_loop: bool = False
    steps: int = 0

    def report(self) -> Finding:
        name = self.module or "the model"
        if self.in_loop:
            return finding(
                "warning",
                f"In each of {self.steps} steps, {name} ran repeatedly{at(self.where)}, and "
                "backward used one of its results only: the others, "
                f"{self.count} in all, were dropped.",
                cause="a loop that keeps its last result only",
                advice="Call backward() inside the loop, or add up the losses of the loop, as in "
                "loss = loss + ..., before backward().",
                where=self.where,
            )
        dropped = self.in_training and not self.was_read
        return finding(
            "warning" if dropped else "info",
            f"{name} ran{at(self.where)} with gradients {self.count} times, and no backward ran "
            "through it" + (": its result was dropped." if dropped else "."),
            cause="a forward without a backward",
            advice="Add the loss computed from it to the loss of the backward. If this forward "
            "should train nothing, run it under torch.no_grad()."
            if dropped
            else "Run it under torch.no_grad() if it should train nothing.",
            where=self.where,
        )
