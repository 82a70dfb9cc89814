"""Rules about computed tensors that are mistaken for leaves, and unregistered parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ...graph import NO_PARAMETERS, Failure, Finding, Operand
from ...graph.events import Event, LeafBackward
from ...graph.immutable import immutable
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at
from .cuts import cause_text

Holder = Literal["list", "dict", "attribute", "forward", "outside", "variable"]


@rule("error", of=(LeafBackward,))
def loss_is_a_leaf(reading: Reading) -> Iterator[Finding]:
    """Backward started from a leaf: the loss is a tensor without history, which no recorded
    operation computed.

    ## Why it matters

    A leaf has no history, so `backward()` computes a gradient only for the loss itself.
    Setting `requires_grad` on a loss hides the error "does not require grad", but does not repair
    its cause.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        loss = model(torch.randn(8, 4)).detach().mean()
        loss.requires_grad = True  # <- reported
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        loss = model(torch.randn(8, 4)).mean()
        loss.backward()
    ```

    ## When it is intended

    It is never intended in a training step: backward from a leaf reaches no parameters.

    ## Not detected

    A loss that was computed from a new leaf in the middle of the model is reported as
    `cut-gradient` instead.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    - [torch.Tensor.is_leaf](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.is_leaf.html)
    """
    for event in reading.leaf_losses:
        name = event.label or "the loss"
        made = f"made a leaf by {event.maker}" if event.maker else "made a new leaf"
        cuts = reading.graph.cuts
        cut_before = ""
        if cuts:
            last = cuts[-1]
            cut_before = f"; before that, {cause_text(last)}{at(last.where)} cut it from the model"
        yield finding(
            "error",
            f"backward started from {name}, which was {made}{at(event.where)}: a leaf has no "
            f"history, so no parameter gets a gradient{cut_before}.",
            cause="the loss is a leaf",
            advice=f"Compute {name} from the model's output with torch operations, and do not "
            "set requires_grad on it: a loss without a grad_fn was detached from the model "
            "before.",
            where=event.where,
            nodes=event.nodes,
        )


@immutable
class GradientRead(Event):
    """A read of the attribute `.grad` of a non-leaf tensor, which is None."""

    label: str = ""  # name of the caller's variable for the tensor
    tensor: Operand | None = None


@rule("error", of=(GradientRead,))
def grad_of_non_leaf(reading: Reading) -> Iterator[Finding]:
    """The `.grad` of a tensor that is not a leaf was read: it is None.

    ## Why it matters

    Backward fills `.grad` of leaves only. The `.grad` of a computed tensor is None, and `w = w -
    0.1 * w.grad` makes `w` a computed tensor. The next update by hand then fails, or silently does
    nothing.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w = torch.ones(3, requires_grad=True)
    with record() as recording:
        for _ in range(2):
            (w * w).sum().backward()
            w = w - 0.1 * w.grad  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w = torch.ones(3, requires_grad=True)
    with record() as recording:
        for _ in range(2):
            (w * w).sum().backward()
            w = (w - 0.1 * w.grad).detach().requires_grad_()
    ```

    ## When it is intended

    If you need the gradient of a computed tensor, call `retain_grad()` on that tensor before
    backward.

    ## Not detected

    Reads of `.grad` inside a library, such as a logger, are not reported.

    ## See also

    - [torch.Tensor.is_leaf](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.is_leaf.html)
    - [torch.Tensor.retain_grad](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.retain_grad.html)
    """
    failure = reading.graph.failure
    ended = failure is not None and "NoneType" in failure.message
    for event in reading.events(GradientRead):
        made = event.tensor.where if event.tensor else ""
        name = event.label or "a tensor"
        yield finding(
            "error" if ended else "info",
            f"{name}.grad{at(event.where)} is None, because {name} is not a leaf: it was computed"
            f"{at(made)}{_operation_text(reading, event)}.",
            cause="not a leaf",
            advice=f"After computing {name}, make it a leaf with {name} = "
            f"{name}.detach().requires_grad_(), or change an existing leaf in place under "
            "torch.no_grad().",
            where=made or event.where,
            nodes=event.nodes,
        )


@rule("error", of=(Failure,))
def non_leaf_in_optimizer(reading: Reading) -> Iterator[Finding]:
    """An optimizer was given a tensor that is not a leaf, such as the result of to(device).

    ## Why it matters

    An optimizer can update leaves only. `to(device)` and arithmetic return computed tensors, for
    which the optimizer raises an error.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        scale = torch.ones(2, requires_grad=True).to(gpu)  # <- reported
        optimizer = torch.optim.SGD([scale], lr=0.1)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,), record() as recording:
        scale = torch.ones(2, device=gpu, requires_grad=True)
        optimizer = torch.optim.SGD([scale], lr=0.1)
        (scale * 2).sum().backward()
        optimizer.step()
    ```

    ## When it is intended

    It is never intended: the optimizer has raised an error.

    ## Not detected

    Optimizers of other libraries are not checked.

    ## See also

    - [torch.Tensor.is_leaf](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.is_leaf.html)
    """
    failure = reading.graph.failure
    if failure is None or "can't optimize a non-leaf" not in failure.message:
        return
    result: Operand | None = failure.operands[0] if failure.operands else None
    name = (result.label if result else "") or "a tensor"
    made = result.where if result else ""
    node = None if result is None or result.node is None else reading.graph.nodes[result.node]
    by = f" by {node.title}" if node is not None else ""
    yield finding(
        "error",
        f"The optimizer{at(failure.where)} got {name}, which is not a leaf: it was computed"
        f"{at(made)}{by}.",
        cause="not a leaf",
        advice="Create the tensor on its device, as in torch.ones(2, device=device, "
        "requires_grad=True), or call detach().requires_grad_() on the result.",
        where=made or failure.where,
        nodes=() if node is None else (node.id,),
    )


@rule("warning")
@immutable
class DataAssignment(Event):
    """`x.data = h` copies the values of h without its history.

    ## Why it matters

    `.data` bypasses autograd: the values are copied and their history is not. The operations that
    computed the values get no gradient, and no error is raised.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    x = torch.zeros(8, 4, requires_grad=True)
    with record(nn.ModuleList([body, head])) as recording:
        h = body(torch.randn(8, 4))
        x.data = h  # <- reported
        head(x).mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    x = torch.zeros(8, 4, requires_grad=True)
    with record(nn.ModuleList([body, head])) as recording:
        h = body(torch.randn(8, 4))
        head(h).mean().backward()
    ```

    ## When it is intended

    A program may update a parameter by hand in this way. Write `with torch.no_grad(): x.copy_(h)`
    instead: autograd then raises an error if a saved tensor is overwritten.

    ## Not detected

    Assignments of values without history are not reported, because no gradient is lost.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    - [torch.Tensor.copy_](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.copy_.html)
    """

    label: str = ""  # name of the caller's variable x
    value: Operand | None = None  # h

    def report(self) -> Finding:
        value = self.value.label if self.value else ""
        name = self.label or "a tensor"
        return finding(
            "warning",
            f"{name}.data = {value or '...'}{at(self.where)} copies values without their "
            f"history: no gradient flows from {name} to the source of {value or 'these values'}.",
            cause="cut by .data",
            advice=f"Use {value or 'the result'} itself in place of {name}.",
            where=self.where,
            nodes=self.nodes,
        )


@immutable
class UnregisteredParameters(Event):
    """Parameters that the model uses, but that are not registered in any of its modules."""

    # Where the parameters are: in a plain list or dict of the model, in a layer created in forward,
    # in a module outside of the model, or (a single parameter) in a variable of the program; or,
    # for a tensor that is not an nn.Parameter, in an attribute of a module.
    holder: Holder = "outside"
    name: str = ""  # name of this object


@rule("error", of=(UnregisteredParameters,))
def not_registered(reading: Reading) -> Iterator[Finding]:
    """Parameters that got a gradient belong to no module of the model, and no optimizer updates
    them. They are in a plain list or dict, in a layer that forward creates, or in a variable of the
    program.

    ## Why it matters

    A module finds parameters through its attributes, but not inside a plain list or dict.
    `parameters()`, `to()` and `state_dict()` miss such parameters, so they never learn, stay
    on the CPU and are not saved.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.layers = nn.Linear(4, 1), [nn.Linear(4, 4)]

        def forward(self, x):
            return self.last(self.layers[0](x))  # <- reported


    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.layers = nn.Linear(4, 1), nn.ModuleList([nn.Linear(4, 4)])

        def forward(self, x):
            return self.last(self.layers[0](x))


    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    A plain list may hold a module that belongs to another object, such as a teacher that is not
    saved with the model.

    ## Not detected

    Layers that get no gradient are not reported.

    ## See also

    - [torch.nn.ModuleList](https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html)
    - [torch.nn.ParameterList](https://docs.pytorch.org/docs/stable/generated/torch.nn.ParameterList.html)
    """
    nodes, failure = reading.graph.nodes, reading.graph.failure
    for event in reading.events(UnregisteredParameters):
        if not event.nodes and failure is not None and NO_PARAMETERS in failure.message:
            raised = failure.raised_where or failure.where
            yield finding(
                "error",
                f"The optimizer{at(raised)} got no parameters: {event.name}"
                f"{_assignment(event)} is a plain {event.holder}, so its contents are not "
                "registered.",
                cause="not in the model",
                advice=_container_advice(event),
                where=raised,
            )
            continue
        if not event.nodes:
            continue  # the nodes are in another graph of the recording
        users = [nodes[e.target].where for i in event.nodes for e in reading.users[i]]
        line = next(filter(None, users), "")
        names = listing(reading.call(i) for i in event.nodes) or event.name
        if event.holder == "forward":
            message = (
                f"{event.name}{at(line)} is re-created in each forward, so no optimizer updates "
            )
            message += "its parameters."
            advice = "Create the layer in __init__, as an attribute of the module."
        elif event.holder == "variable":
            message = f"No optimizer holds {event.name}, which got a gradient{at(line)}."
            advice = f"Pass {event.name} to an optimizer if it should learn."
        elif event.holder == "attribute":
            message = f"No optimizer updates {event.name}, which got a gradient{at(line)}: the "
            message += (
                f"tensor{_assignment(event)} is not an nn.Parameter, so it is not registered."
            )
            advice = f"Set it to nn.Parameter(...), or pass {event.name} to an optimizer."
        elif event.holder == "outside":
            message = f"No optimizer updates {names}, which got a gradient{at(line)}: "
            message += f"{event.name} is not in the model."
            advice = f"Pass {event.name}.parameters() to an optimizer if they should learn."
        else:
            count = len(event.nodes)
            message = f"No optimizer updates {count} parameter{'' if count == 1 else 's'} in "
            message += f"{event.name}, which got a gradient{at(line)}: {event.name}"
            message += f"{_assignment(event)} is a plain {event.holder}, so it is not registered."
            advice = _container_advice(event)
        yield finding(
            # The program may update these parameters by hand, or may not train them.
            "info" if event.holder in ("outside", "variable") else "warning",
            message,
            cause="not in the optimizer" if event.holder == "variable" else "not in the model",
            advice=advice,
            where=line,
            nodes=event.nodes,
        )


def _assignment(event: UnregisteredParameters) -> str:
    return f", set{at(event.where)}," if event.where else ""


def _container_advice(event: UnregisteredParameters) -> str:
    kind = "Dict" if event.holder == "dict" else "List"
    return f"Use nn.Module{kind}, or nn.Parameter{kind} for bare parameters."


def _operation_text(reading: Reading, event: GradientRead) -> str:
    titles = [reading.graph.nodes[i].title for i in event.nodes]
    return f" by {titles[0]}" if titles else ""
