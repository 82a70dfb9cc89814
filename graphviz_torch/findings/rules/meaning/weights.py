"""Weights: untied copies, zero and symmetric initialization, and weights that do not change."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Edge, Finding, GradientStats, Parameter
from ....graph.events import SymmetricRows, UnchangedParameters
from ....graph.text import listing
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at, names_of, nodes_of
from ..cuts import upstream

_PRODUCTS = ("mm", "addmm", "linear", "bmm")
_NORM_TOLERANCE = 1e-7  # relative: norms of different values differ by more


@rule("warning", of=("embedding",), advanced=True)
def untied_weights(reading: Reading) -> Iterator[Finding]:
    """An output layer starts with the values of the embedding, but is a separate parameter: after
    each step the two differ more.

    ## Why it matters

    Tied weights save a table of the vocabulary and share what they learn. A copy starts equal and
    drifts away with each step: the model has twice the parameters, and is not the intended one.

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

    An output layer that starts with the values of the embedding and learns separately.

    ## Not detected

    Copies that were changed before the recorded step.

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
            if abs((head.norm or 0) - (table.norm or 0)) > _NORM_TOLERANCE * (table.norm or 0):
                continue
            yield finding(
                "warning",
                f"{head.name}{at(product.where)} has the same values as {table.name}, but is a "
                "separate parameter: with each step the two differ more.",
                cause="a copy where tied weights belong",
                advice=f"Tie them: {head.name} = {table.name}, after both layers are created.",
                where=product.where,
                nodes=(*nodes_of((head, table)), product.id),
            )


@rule("warning", of=(GradientStats,), advanced=True)
def zero_init_pair(reading: Reading) -> Iterator[Finding]:
    """Two weights that are multiplied are both zero, such as the two factors of a LoRA, or a gate
    and the last layer of its branch: both get only zeros as gradients and never change.

    ## Why it matters

    The gradient of each factor is a product with the other one, which is zero: neither ever
    changes. One factor of zeros is enough to start as the identity.

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

    Never: neither factor can learn.

    ## Not detected

    Pairs with more than one layer in between.

    ## See also

    - [torch.nn.init](https://docs.pytorch.org/docs/stable/nn.init.html)
    """
    zeros = [
        p
        for p in reading.graph.parameters
        if p.node is not None and p.norm == 0 and p.requires_grad
    ]
    zeros = [p for p in zeros if _has_zero_gradient(reading, p) and _is_factor(reading, p)]
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
                ),
                None,
            )
            if product is None:
                continue
            line = reading.graph.nodes[product].where
            yield finding(
                "warning",
                f"{names_of((first, second))} are both zero, and meet{at(line)}: each gets a "
                "gradient of zeros only.",
                cause="both are zero",
                advice=f"Initialize {weight.name} with random values, such as "
                "nn.init.kaiming_uniform_: one factor of zeros is enough, if no other layer is "
                "zero.",
                where=line,
                nodes=(first.node or 0, second.node, product),
            )
            return


@rule("warning", reads="end", of=(SymmetricRows,))
def symmetric_init(reading: Reading) -> Iterator[Finding]:
    """All rows of a weight have the same values and get the same gradient: all units of the layer
    compute the same, and stay equal.

    ## Why it matters

    Units that start equal get equal gradients and stay equal forever: a layer of 1,000 units
    computes as much as one unit.

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

    A last layer may start with zeros, such as a zero-initialized gate: its rows get different
    gradients, and it is not reported.

    ## Not detected

    Rows that are equal in pairs.

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
                f"All rows of {names} have the same values, also after the step: they get the "
                "same gradients, so the units stay equal.",
                cause="equal units",
                advice=f"Initialize {'it' if one else 'them'} with random values, such as "
                "nn.init.kaiming_uniform_.",
                where=next(filter(None, lines), ""),
                nodes=event.nodes,
            )


@rule("warning", reads="end", of=(UnchangedParameters,), also=("watch",))
def no_update(reading: Reading) -> Iterator[Finding]:
    """An optimizer's step does not change parameters that have a gradient and a learning rate: in
    bfloat16, for example, a small update is rounded away.

    ## Why it matters

    The loss, the gradients and the learning rate look right, and the weights are the same after the
    step. In bfloat16 a change below a 256th of a weight is rounded away.

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

    Optimizers with stochastic rounding or a master copy in float32 do not lose small updates.

    ## Not detected

    Weights of which only a part changes.

    ## See also

    - [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html)
    - [torch.bfloat16](https://docs.pytorch.org/docs/stable/tensor_attributes.html)
    """
    for event in reading.events(UnchangedParameters):
        if not event.nodes:
            continue
        metas = [reading.meta(node) for node in event.nodes]
        wide = any(meta is not None and len(meta.shape) > 1 for meta in metas)
        sure = event.share == 1 and event.steps > 1 and wide  # a bias before a norm has no effect
        low = event.dtype in ("bfloat16", "float16")
        why, advice = "", ""
        if low:
            why = f": the update is too small for {event.dtype} and is rounded away"
            advice = "Keep the parameters in float32, and compute under torch.autocast."
        elif not event.contiguous:
            why = ", and in memory they are not contiguous"
            advice = "Make them contiguous() before the optimizer is created."
        one = len(event.nodes) == 1
        they_have = "it has" if one else "they have"
        names = listing(reading.call(node) for node in event.nodes)
        yield finding(
            "warning" if sure else "info",
            f"The step{at(event.where)} does not change {names}: {event.share:.0%} of the "
            f"sampled elements are the same, though {they_have} a gradient and a "
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
    """Steps change only norms and biases: no weight with two or more dimensions learns.

    ## Why it matters

    Norms and biases have few parameters: a model in which nothing else learns hardly changes.

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

    Models in which one large weight learns, too.

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


def _has_zero_gradient(reading: Reading, parameter: Parameter) -> bool:
    stats = None if parameter.node is None else reading.stats(parameter.node)
    return stats is not None and stats.zero_fraction == 1


def _is_factor(reading: Reading, parameter: Parameter) -> bool:
    """Return True if the parameter is multiplied with an input: a matrix, a kernel or a gate."""
    uses = (reading.graph.nodes[edge.target] for edge in _uses(reading, parameter.node))
    return len(parameter.tensor.shape) > 1 or any(node.operation == "mul" for node in uses)


def _uses(reading: Reading, node: int | None) -> Iterator[Edge]:
    """Yield the edges from a parameter, or a view of it, to the nodes that use it."""
    found = [] if node is None else [node]
    for each in found:
        for edge in reading.users[each]:
            yield edge
            if reading.graph.nodes[edge.target].operation in ("t", "transpose", "view", "permute"):
                found.append(edge.target)
