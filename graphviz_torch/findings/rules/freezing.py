"""Rules about freezing and eval mode: parameters and layers that do not learn."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding, Parameter
from ...graph.events import Event, ParameterFreeze
from ...graph.immutable import immutable
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, group_by_key, names_of, nodes_of


@immutable
class AttributeAssignment(Event):
    """An assignment without effect: the attribute's name is a misspelling of requires_grad."""

    owner: str = ""  # "fc1", or "fc1.weight"
    attribute: str = ""  # "require_grad"


@rule("warning", of=(AttributeAssignment,))
def attribute_without_effect(reading: Reading) -> Iterator[Finding]:
    """An attribute that looks like requires_grad, but has no effect, was set on a module or a
    parameter.

    ## Why it matters

    Python allows a program to set any attribute. `module.requires_grad = False` and
    `parameter.require_grad = False` raise no error and have no effect: the parameters continue to
    learn.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with record(model) as recording:
        model[0].requires_grad = False  # <- reported
        model(torch.randn(8, 4)).mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with record(model) as recording:
        model[0].requires_grad_(False)
        model(torch.randn(8, 4)).mean().backward()
    ```

    ## When it is intended

    It is never intended: the attribute has no effect on autograd.

    ## Not detected

    Other misspelled attributes are not reported.

    ## See also

    - [torch.nn.Module.requires_grad_](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.requires_grad_)
    """
    learning = {p.name for p in reading.graph.parameters if p.requires_grad}
    for (name, where), events in group_by_key(
        ((e.attribute, e.where), e) for e in reading.events(AttributeAssignment)
    ):
        labels = [event.owner for event in events]
        if name == "requires_grad":
            yield finding(
                "warning",
                f"requires_grad was set on the module {listing(labels)}{at(where)}: modules have "
                "no such setting, so nothing is frozen.",
                cause="an attribute that does nothing",
                advice=f"Call {labels[0] or 'model'}.requires_grad_(False).",
                where=where,
            )
        elif learning.intersection(labels) or not learning:
            yield finding(
                "warning",
                f"{name} was set on {listing(labels)}{at(where)}: this has no effect, because the "
                "attribute is called requires_grad.",
                cause="an attribute that does nothing",
                advice=f"Write requires_grad in place of {name}.",
                where=where,
            )


@immutable
class EvalMode(Event):
    """A forward with all modules in eval mode that behave differently in train mode.

    Such modules are, for example, Dropout and BatchNorm.
    """

    module: str = ""  # path of the first of these modules
    count: int = 1  # number of these modules
    classes: tuple[str, ...] = ()  # their distinct class names: "Dropout"


@rule("warning", of=(EvalMode,))
def trained_in_eval_mode(reading: Reading) -> Iterator[Finding]:
    """A model was trained while all of its dropout and batch norm layers were in eval mode.

    ## Why it matters

    In eval mode, dropout does nothing, and batch norm uses its running statistics without updating
    them. A model that is still in eval mode after a validation is trained without this
    regularization, and with outdated statistics.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).mean().backward()  # <- reported
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    Fine-tuning often keeps batch norm frozen. Call `eval()` on the norm layers only: nothing is
    reported if any other dropout or norm is in train mode.

    ## Not detected

    Your own modules that read `self.training` are not checked.

    ## See also

    - [torch.nn.Module.train](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.train)
    - [Evaluation mode](https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval)
    """
    graph = reading.graph
    learning = {
        p.node for p in graph.parameters if p.stepped and p.name in reading.parameters_with_gradient
    }
    roots = {node for node, _ in graph.outputs}
    for event in reading.events(EvalMode):
        if not learning or roots.isdisjoint(event.nodes) or not graph.outputs:
            continue
        lines = [graph.nodes[node].where for node, _ in graph.outputs]
        where = next(filter(None, lines), "")
        many = event.count > 1
        which = f"{event.count} modules, {event.module} first" if many else event.module
        kinds = ", ".join(event.classes)
        yield finding(
            "warning",
            f"The model was trained in eval mode{at(where)}: {kinds} ({which}) behaved as in "
            f"evaluation{f'; eval() was called{at(event.where)}' if event.where else ''}.",
            cause="trained in eval mode",
            advice="Call model.train() before the training step and after every evaluation, "
            "unless eval mode is intended.",
            where=where,
            nodes=event.nodes,
        )


@rule("error", of=(Parameter,))
def frozen(reading: Reading) -> Iterator[Finding]:
    """Parameters that an optimizer holds, or all parameters, get no gradient because requires_grad
    is False.

    ## Why it matters

    A frozen parameter gets no gradient, whatever the loss is. If all parameters are frozen,
    backward fails with "does not require grad". If an optimizer holds frozen parameters, the
    program may have forgotten to unfreeze them.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    with record(model) as recording:
        model(torch.randn(8, 4)).mean().backward()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        for parameter in model.parameters():
            parameter.requires_grad = False  # <- reported
        model(torch.randn(8, 4)).mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with record(model) as recording:
        model(torch.randn(8, 4)).mean().backward()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        model(torch.randn(8, 4)).mean().backward()
    ```

    ## When it is intended

    Transfer learning freezes a backbone. If the optimizer holds only the parameters that learn, the
    rule reports nothing.

    ## Not detected

    Parameters that are frozen and unfrozen again within one step are not reported.

    ## See also

    - [Setting requires_grad](https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad)
    """
    everything = _everything_frozen(reading)
    if everything is not None:
        yield everything
        return
    evaluated = {row.path for row in reading.graph.modules if row.mode == "eval"}
    still = [
        p
        for p in reading.graph.parameters
        if not p.requires_grad
        and (p.stepped is None or p.stepped or p.in_optimizer)
        and not p.got_gradient  # another step trains this parameter
        and p.module_called is not False
        and p.name.rpartition(".")[0] not in evaluated
    ]
    if still:
        yield finding(
            "info",
            f"{names_of(still)} {'is' if len(still) == 1 else 'are'} frozen: requires_grad is "
            "False.",
            cause="frozen",
            nodes=nodes_of(still),
        )


def _everything_frozen(reading: Reading) -> Finding | None:
    """Return the finding that backward failed because every parameter is frozen; None otherwise."""
    parameters, failure = reading.graph.parameters, reading.graph.failure
    if not parameters or any(p.requires_grad for p in parameters) or not reading.loss_has_no_grad:
        return None
    line = next((e.where for e in reading.events(ParameterFreeze)), "")
    many = len(parameters) > 1
    frozen = f"All {len(parameters)} parameters are" if many else "The only parameter is"
    return finding(
        "error",
        f"{frozen} frozen{at(line)}: requires_grad is False, so the loss needs no gradient.",
        cause="everything is frozen",
        advice="Call requires_grad_(True) on the parameters that should learn.",
        where=line or (failure.where if failure else ""),
    )
