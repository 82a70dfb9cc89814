"""Rules about weights: untied copies, bad initialization, and weights without updates."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

from ....graph import Edge, Finding, GradientStats, Parameter
from ....graph.events import Event
from ....graph.immutable import immutable
from ....graph.nodes import SAME_VALUES
from ....graph.text import listing
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at, names_of, nodes_of
from ..cuts import upstream

_PRODUCTS = ("mm", "addmm", "linear", "bmm")
_NORM_TOLERANCE = 1e-7  # relative difference; norms of different tensors differ by more


@rule("warning", of=("embedding",), advanced=True)
def untied_weights(reading: Reading) -> Iterator[Finding]:
    """An output layer starts with the values of the embedding but is a separate parameter, so the
    two differ more after each step.

    ## Why it matters

    Tied weights are one parameter, which both layers train. A copy starts with equal values, but
    then changes differently in each step. The model has two separate matrices, and is not the
    intended one.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    table, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
    head.weight = nn.Parameter(table.weight.detach().clone())
    with record(nn.ModuleDict({"table": table, "head": head})) as recording:
        words = torch.randint(12, (4, 6))
        scores = head(table(words).tanh())  # <- reported
        F.cross_entropy(scores.flatten(0, 1), words.flatten()).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    table, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
    head.weight = table.weight
    with record(nn.ModuleDict({"table": table, "head": head})) as recording:
        words = torch.randint(12, (4, 6))
        scores = head(table(words).tanh())
        F.cross_entropy(scores.flatten(0, 1), words.flatten()).backward()
    ```

    ## When it is intended

    The output layer may be meant to start with the values of the embedding and learn separately.

    ## Not detected

    Copies whose values were changed before the recorded step are not detected.

    ## See also

    - [torch.nn.Embedding](https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html)
    """
    users = {
        p: [reading.graph.nodes[edge.target] for edge in _uses(reading, p.node)]
        for p in reading.graph.parameters
        if p.node is not None and p.norm and p.requires_grad and len(p.tensor.shape) == 2
    }
    for table, reads in users.items():
        if not any(node.operation == "embedding" for node in reads):
            continue
        for head, products in users.items():
            product = next((node for node in products if node.operation in _PRODUCTS), None)
            if head is table or product is None or head.tensor.shape != table.tensor.shape:
                continue
            if not isclose(head.norm or 0, table.norm or 0, rel_tol=_NORM_TOLERANCE):
                continue
            yield finding(
                "warning",
                f"{head.name}{at(product.where)} has the same values as {table.name}, but is a "
                "separate parameter, so the two differ more after each step.",
                cause="a copy where tied weights belong",
                advice=f"Tie them: {head.name} = {table.name}, after both layers are created.",
                where=product.where,
                nodes=(*nodes_of((head, table)), product.id),
            )


@rule("warning", of=(GradientStats,), advanced=True)
def zero_init_pair(reading: Reading) -> Iterator[Finding]:
    """Two weights that are multiplied are both zero, so the gradients of both are zero and
    neither changes. Examples are the two factors of a LoRA, or a gate and the last layer of its
    branch.

    ## Why it matters

    The gradient of each factor is a product with the other factor, which is zero, so neither factor
    ever changes. For a branch that starts at zero, one factor of zeros is enough.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    lora = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False))
    nn.init.zeros_(lora[0].weight)
    nn.init.zeros_(lora[1].weight)
    with record(lora) as recording:
        x = torch.randn(8, 6)
        (x + lora(x)).square().mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    lora = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False))
    nn.init.normal_(lora[1].weight, std=1e-3)
    with record(lora) as recording:
        x = torch.randn(8, 6)
        (x + lora(x)).square().mean().backward()
    ```

    ## When it is intended

    It is never intended, because neither factor can learn.

    ## Not detected

    Pairs with more than one layer in between are not detected. If the gradient of the product is
    all zeros as well, the pair is not the cause, and is not reported.

    ## See also

    - [torch.nn.init](https://docs.pytorch.org/docs/stable/nn.init.html)
    """
    zeros = [
        p
        for p in reading.graph.parameters
        if p.node is not None and p.norm == 0 and p.requires_grad
    ]
    zeros = [p for p in zeros if _has_zero_gradient(reading, p.node) and _is_factor(reading, p)]
    for first in zeros:
        for second in zeros:
            weight = max(first, second, key=lambda p: len(p.tensor.shape))
            if second is first or second.node is None or len(weight.tensor.shape) < 2:
                continue
            product = next(
                (
                    edge.target
                    for edge in _uses(reading, second.node)
                    if first.node in upstream(reading, edge.target, set())
                    and not _has_zero_gradient(reading, edge.target)
                ),
                None,
            )
            if product is None:
                continue
            line = reading.graph.nodes[product].where
            yield finding(
                "warning",
                f"{names_of((first, second))} are both zero and are multiplied{at(line)}: the "
                "gradient of each is all zeros.",
                cause="both are zero",
                advice=f"Initialize {weight.name} with random values, such as "
                "nn.init.kaiming_uniform_: only one of the two factors should be zero.",
                where=line,
                nodes=(first.node or 0, second.node, product),
            )
            return


@immutable
class SymmetricRows(Event):
    """Weights in which all rows have equal values and get equal gradients.

    `nodes` are the ids of the weights' nodes.
    """


@rule("warning", reads="end", of=(SymmetricRows,))
def symmetric_init(reading: Reading) -> Iterator[Finding]:
    """All rows of a weight have the same values and gradients, so all units of the layer
    compute the same and stay equal.

    ## Why it matters

    Units that start equal get equal gradients and stay equal: a layer of 1,000 units can compute no
    more than a single unit.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()  # <- reported
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    for layer in (model[0], model[2]):
        nn.init.kaiming_uniform_(layer.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
        optimizer.step()
    ```

    ## When it is intended

    A last layer or a gate may start with zeros. Its rows get different gradients, so it is not
    reported.

    ## Not detected

    A weight in which only some rows are equal is not reported.

    ## See also

    - [torch.nn.init](https://docs.pytorch.org/docs/stable/nn.init.html)
    """
    for event in reading.events(SymmetricRows):
        names = listing(reading.call(node) for node in event.nodes)
        one = len(event.nodes) == 1
        lines = [_line(reading, node) for node in event.nodes]
        if event.nodes:
            yield finding(
                "warning",
                f"All rows of {names} have the same values before and after the step. They get "
                "the same gradients, so the units stay equal.",
                cause="equal units",
                advice=f"Initialize {'it' if one else 'them'} with random values, such as "
                "nn.init.kaiming_uniform_.",
                where=next(filter(None, lines), ""),
                nodes=event.nodes,
            )


@immutable
class UnchangedParameters(Event):
    """Parameters that optimizer steps did not change, despite a gradient and a learning rate.

    `nodes` are the ids of the parameters' nodes.
    """

    dtype: str = ""  # "bfloat16"
    contiguous: bool = True
    rate: float = 0.0  # largest learning rate
    steps: int = 0  # number of steps that were checked
    share: float = 1.0  # fraction of the checked elements that the steps did not change


@rule("warning", reads="end", of=(UnchangedParameters,), also=("watch",))
def no_update(reading: Reading) -> Iterator[Finding]:
    """An optimizer's step does not change parameters although they have a gradient and a learning
    rate, for example because bfloat16 rounds a small update away.

    ## Why it matters

    The loss, the gradients and the learning rate look right, but the step does not change the
    weights. In bfloat16, a change of less than about 1/256 of a weight is rounded away.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    nn.init.ones_(model.weight)
    model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6, dtype=torch.bfloat16)).square().mean().backward()
            optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(6, 3)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(8, 6)).square().mean()
            loss.backward()
            optimizer.step()
    ```

    ## When it is intended

    Optimizers with stochastic rounding, or with a float32 copy of the weights, accumulate small
    updates that a single step does not show.

    ## Not detected

    A weight of which some elements change is reported only with severity info.

    ## See also

    - [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html)
    - [torch.bfloat16](https://docs.pytorch.org/docs/stable/tensor_attributes.html)
    """
    for event in reading.events(UnchangedParameters):
        if not event.nodes:
            continue
        metas = [reading.meta(node) for node in event.nodes]
        wide = any(meta is not None and len(meta.shape) > 1 for meta in metas)
        # A bias before a norm does not change the loss, so unchanged vectors alone do not make a
        # warning.
        sure = event.share == 1 and event.steps > 1 and wide
        low = event.dtype in ("bfloat16", "float16")
        why, advice = "", ""
        if low:
            why = f": the update is too small for {event.dtype} and is rounded away"
            advice = "Keep the parameters in float32, and compute under torch.autocast."
        elif not event.contiguous:
            why = ", and they are not contiguous in memory"
            advice = "Call contiguous() on them before the optimizer is constructed."
        one = len(event.nodes) == 1
        they_have = "it has" if one else "they have"
        names = listing(reading.call(node) for node in event.nodes)
        yield finding(
            "warning" if sure else "info",
            f"The step{at(event.where)} does not change {names}: {event.share:.0%} of the "
            f"sampled elements are unchanged, although {they_have} a gradient and a learning "
            f"rate of {event.rate:g}{why}.",
            cause=f"an update that {event.dtype} rounds away" if low else "a step without effect",
            advice=advice,
            where=event.where,
            nodes=event.nodes,
        )


def _line(reading: Reading, node: int) -> str:
    return next((reading.graph.nodes[e.target].where for e in _uses(reading, node)), "")


@rule("info", of=(Parameter,))
def only_norms_train(reading: Reading) -> Iterator[Finding]:
    """The optimizer trains only norms and biases: no weight with two or more dimensions learns.

    ## Why it matters

    Norms and biases are a small part of a model's parameters. If nothing else learns, the model
    hardly changes.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    for module in (model[0], model[2]):
        module.requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
        optimizer.step()
    ```

    ## When it is intended

    Some kinds of fine-tuning train only norms or biases.

    ## Not detected

    A model in which at least one weight with two dimensions learns is not reported.

    ## See also

    - [torch.nn.Module.requires_grad_](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.requires_grad_)
    """
    learning = [p for p in reading.graph.parameters if p.stepped and p.requires_grad]
    if len(learning) < 2 or any(len(p.tensor.shape) > 1 for p in learning):
        return
    still = [p for p in reading.graph.parameters if p.module_called and len(p.tensor.shape) > 1]
    if len(still) < 2:
        return
    frozen = sum(not p.requires_grad for p in still)
    counts = {"are frozen": frozen, "are in no optimizer that steps": len(still) - frozen}
    why = " and ".join(f"{count} {state}" for state, count in counts.items() if count)
    yield finding(
        "info",
        f"Only norms and biases learn: {names_of(learning)}. Of the {len(still)} weights with more "
        f"than one dimension, {why}.",
        cause="only norms and biases learn",
        nodes=nodes_of(learning),
    )


def _has_zero_gradient(reading: Reading, node: int | None) -> bool:
    stats = None if node is None else reading.stats(node)
    return stats is not None and stats.zero_fraction == 1


def _is_factor(reading: Reading, parameter: Parameter) -> bool:
    """Return True if the parameter is a factor of a product: a matrix, a kernel or a gate."""
    uses = (reading.graph.nodes[edge.target] for edge in _uses(reading, parameter.node))
    return len(parameter.tensor.shape) > 1 or any(node.operation == "mul" for node in uses)


def _uses(reading: Reading, node: int | None) -> Iterator[Edge]:
    """Yield the edges from a parameter, or from a view of it, to the nodes that use it."""
    found = [] if node is None else [node]
    for each in found:
        for edge in reading.users[each]:
            yield edge
            if reading.graph.nodes[edge.target].operation in SAME_VALUES:
                found.append(edge.target)
