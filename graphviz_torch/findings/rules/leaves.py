"""Leaves: tensors that backward ends at, and parameters that the model does not own."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import NO_PARAMETERS, Failure, Finding, Operand
from ...graph.events import DataAssignment, GradientRead, LeafBackward, UnregisteredParameters
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at
from .cuts import cause_text


@rule("error", of=(LeafBackward,))
def loss_is_a_leaf(reading: Reading) -> Iterator[Finding]:
    """Backward started from a leaf: the loss is a new tensor that no operation computed.

    ## Why it matters

    A leaf has no history, so `backward()` gives a gradient to the loss itself and to nothing else.
    Setting `requires_grad` on a loss hides the error "does not require grad" without mending its
    cause.

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

    Never in a training: a leaf has nothing to train.

    ## Not detected

    A loss that is computed from a new leaf in the middle of the model: that is reported as
    `cut-gradient`.

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
            f"history, so nothing else gets a gradient{cut_before}.",
            cause="the loss is a leaf",
            advice=f"Compute {name} from the model's output with torch operations, and do not set "
            "requires_grad on it: a loss without a grad_fn was cut off before.",
            where=event.where,
            nodes=event.nodes,
        )


@rule("error", of=(GradientRead,))
def grad_of_non_leaf(reading: Reading) -> Iterator[Finding]:
    """The `.grad` of a tensor that is not a leaf was read: it is None.

    ## Why it matters

    Backward fills `.grad` of leaves alone. A tensor that was computed, also from itself, has a
    `.grad` of None: an update by hand then fails, or silently does nothing.

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

    To look at the gradient of a result, call `retain_grad()` on it before backward.

    ## Not detected

    Reads inside of a library, such as a logger.

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
            advice=f"Make {name} a leaf after that, with {name} = {name}.detach()"
            ".requires_grad_(), or change a leaf in place under torch.no_grad().",
            where=made or event.where,
            nodes=event.nodes,
        )


@rule("error", of=(Failure,))
def non_leaf_in_optimizer(reading: Reading) -> Iterator[Finding]:
    """An optimizer was given a tensor that is not a leaf, such as the result of to(device).

    ## Why it matters

    An optimizer updates leaves. `to(device)` and arithmetic return results of an operation, so
    that PyTorch raises an error.

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

    Never: the optimizer has raised an error.

    ## Not detected

    Lists that an optimizer of another library takes.

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
        advice="Make it where it belongs, torch.ones(2, device=device, requires_grad=True), or "
        "call detach().requires_grad_() on the result.",
        where=made or failure.where,
        nodes=() if node is None else (node.id,),
    )


@rule("warning", of=(DataAssignment,))
def data_assignment(reading: Reading) -> Iterator[Finding]:
    """`x.data = h` copies the values of h without its history.

    ## Why it matters

    `.data` bypasses autograd: the values arrive and the history does not. What computed the values
    gets no gradient, and no error says so.

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

    An update of a parameter by hand. Write it as `with torch.no_grad(): x.copy_(h)`, which autograd
    checks.

    ## Not detected

    Assignments of values that have no history: they lose nothing.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    - [torch.Tensor.copy_](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.copy_.html)
    """
    for event in reading.events(DataAssignment):
        value = event.value.label if event.value else ""
        name = event.label or "a tensor"
        yield finding(
            "warning",
            f"{name}.data = {value or '...'}{at(event.where)} takes the values and cuts the "
            f"gradient: what {value or 'they'} came from learns nothing through {name}.",
            cause="cut by .data",
            advice=f"Use {value or 'the result'} itself in place of {name}.",
            where=event.where,
            nodes=event.nodes,
        )


@rule("error", of=(UnregisteredParameters,))
def not_registered(reading: Reading) -> Iterator[Finding]:
    """Parameters got a gradient that no module of the model owns and no optimizer updates: a layer
    in a plain list or dict, one made in forward, or a variable of the program.

    ## Why it matters

    A module finds its parameters through its attributes. A plain list or dict hides them:
    `parameters()`, `to()`, `state_dict()` and the optimizer do not see them, so they never learn,
    stay on the CPU and are not saved.

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

    A reference to a module that another object owns, such as a teacher in a list: it is not meant
    to be saved with the model.

    ## Not detected

    Layers that get no gradient.

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
            continue  # another of the recording's graphs has them
        users = [nodes[e.target].where for i in event.nodes for e in reading.users[i]]
        line = next(filter(None, users), "")
        names = listing(reading.call(i) for i in event.nodes) or event.name
        if event.holder == "forward":
            message = f"{event.name}{at(line)} is re-created in each forward: no optimizer updates "
            message += "its parameters, and the next call drops them."
            advice = "Make the layer in __init__, as an attribute of the module."
        elif event.holder == "variable":
            message = f"No optimizer holds {event.name}, which got a gradient{at(line)}."
            advice = f"Give {event.name} to an optimizer, too, if it should learn."
        elif event.holder == "outside":
            message = f"No optimizer updates {names}, which got a gradient{at(line)}: "
            message += f"{event.name} is not in the model."
            advice = f"Pass {event.name}.parameters() to an optimizer too, if it should learn."
        else:
            count = len(event.nodes)
            message = f"No optimizer updates {count} parameter{'' if count == 1 else 's'} in "
            message += f"{event.name}, which got a gradient{at(line)}: {event.name}"
            message += f"{_assignment(event)} is a plain {event.holder}, so it is not registered."
            advice = _container_advice(event)
        yield finding(
            # The program may update these itself, or not train them.
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
