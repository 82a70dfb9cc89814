"""Losses: inputs that a loss does not take, and shapes that broadcast by accident."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...graph import Finding, Node
from ...graph.events import Broadcast, LossCall
from ..axes import number
from ..graph_reading import Reading
from ..rule import finding, finds, rule
from ..words import at

# Operations that move or select values without computing.
_MOVES_VALUES = {
    "view",
    "unsafe_view",
    "reshape_alias",
    "transpose",
    "permute",
    "t",
    "squeeze",
    "unsqueeze",
}
_MOVES_VALUES |= {"clone", "alias", "slice", "select", "index", "to_copy", "expand", "unflatten"}
_SCORES = ("addmm", "mm", "linear", "baddbmm", "convolution", "mkldnn_linear")
_PROBABILITIES = dict.fromkeys(("softmax", "sigmoid"), "probabilities")
_LOG = {"softmax": "probabilities", **dict.fromkeys(_SCORES, "raw scores")}


class _Loss(NamedTuple):
    """The input that a loss takes, and inputs that are mistakes."""

    takes: str
    mistakes: dict[str, str]  # kind of values, by the operation that returns them
    advice: str


_LOSSES = {
    "log_softmax": _Loss(
        "raw scores",
        {**_PROBABILITIES, "log_softmax": "log-probabilities"},
        "Leave out the {}: cross_entropy applies log_softmax itself.",
    ),
    "binary_cross_entropy_with_logits": _Loss(
        "raw scores", _PROBABILITIES, "Leave out the {}, or use binary_cross_entropy."
    ),
    **dict.fromkeys(
        ("nll_loss", "nll_loss2d"),
        _Loss(
            "log-probabilities",
            _LOG,
            "Use cross_entropy on the raw scores, or pass nll_loss their log_softmax.",
        ),
    ),
    "ctc_loss": _Loss("log-probabilities", _LOG, "Pass it log_softmax of the raw scores."),
}


# Losses that compare a row of values for each sample.
_OF_SAMPLES = ("nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_ELEMENTWISE = ("log", "clamp", "clamp_min", "clamp_max", "add", "to_copy")


@rule("warning", of={*_LOSSES, *_OF_SAMPLES, LossCall})
def loss_input(reading: Reading) -> Iterator[Finding]:
    """A loss got probabilities, logits or log-probabilities where it takes another of them:
    cross_entropy the result of a softmax, nll_loss or kl_div values that are not logarithms.

    ## Why it matters

    The loss is finite and falls, but slowly and to another minimum: a softmax before
    `cross_entropy` squeezes its gradients, and the lowest loss that it can reach is far above 0.
    `kl_div` of values that are not logarithms is not a divergence at all.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    target = torch.randint(3, (8,))
    with record(model) as recording:
        nn.functional.cross_entropy(model(torch.randn(8, 4)), target).backward()  # <- reported
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    with record(model) as recording:
        probabilities = model(torch.randn(8, 4)).softmax(1)
        target = torch.randn(8, 3).softmax(1)
        nn.functional.kl_div(probabilities, target, reduction="batchmean").backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    target = torch.randint(3, (8,))
    with record(model) as recording:
        nn.functional.cross_entropy(model(torch.randn(8, 4)), target).backward()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    with record(model) as recording:
        logarithms = model(torch.randn(8, 4)).log_softmax(1)
        target = torch.randn(8, 3).softmax(1)
        nn.functional.kl_div(logarithms, target, reduction="batchmean").backward()
    ```

    ## When it is intended

    Some papers train with a softmax before `cross_entropy` to flatten the loss. Silence the rule at
    the line of the loss.

    ## Not detected

    Losses that are written by hand from logarithms and sums.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    - [KLDivLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html)
    """
    yield from _over_samples(reading)
    for node in reading.of_operations(_LOSSES):
        first = _first(reading, node)
        if first is None:
            continue
        loss, maker = _LOSSES[node.operation], _maker(reading, first)
        name = node.operation
        if name == "log_softmax":
            if not _is_of_cross_entropy(reading, node):
                continue
            name = "cross_entropy"
        axis = _axis(reading, maker) if first == maker.id and "nll" in name else None
        if axis not in (None, 1):
            yield finding(
                "warning",
                f"{name}{at(node.where)} takes log-probabilities over dimension 1, that of the "
                f"classes, and got them over dimension {axis} from {reading.call(maker.id)}"
                f"{at(maker.where)}.",
                cause="log_softmax over another dimension than that of the classes",
                advice="Call log_softmax with dim=1.",
                where=maker.where,
                nodes=(maker.id, node.id),
            )
        gives = loss.mistakes.get(maker.operation)
        if gives is None or (gives == "raw scores" and not _is_layer(reading, maker, first)):
            continue
        yield finding(
            # A log_softmax of a log_softmax returns the same values, and only takes time.
            "info" if gives == "log-probabilities" else "warning",
            f"{name}{at(node.where)} takes {loss.takes}, and got {gives} from "
            f"{reading.call(maker.id)}{at(maker.where)}.",
            cause=f"{gives} where {loss.takes} belong",
            advice=loss.advice.format(maker.operation),
            where=node.where,
            nodes=(maker.id, node.id),
        )


@finds("loss-input", of=(LossCall,))
def loss_call(reading: Reading) -> Iterator[Finding]:
    """kl_div got probabilities where it takes log-probabilities."""
    nodes = reading.graph.nodes
    for event in reading.events(LossCall):
        node = event.operands[0].node if event.operands else None
        while node is not None and nodes[node].operation in _MOVES_VALUES:
            node = next((e.source for e in reading.inputs[node] if e.input_nr == 0), None)
        if node is None or event.function != "kl_div":
            continue
        maker = nodes[node]
        if maker.operation not in _PROBABILITIES:
            continue
        yield finding(
            "warning",
            f"kl_div{at(event.where)} takes log-probabilities, and got probabilities from "
            f"{maker.title}{at(maker.where)}.",
            cause="probabilities where log-probabilities belong",
            advice="Pass it log_softmax of the raw scores, and leave the target as it is.",
            where=event.where,
            nodes=(maker.id, *event.nodes),
        )


@rule("warning", of=(Broadcast,))
def accidental_broadcast(reading: Reading) -> Iterator[Finding]:
    """An operation paired shapes (N, 1) and (N,), which gives (N, N), each element with each; or a
    loss shapes (N, 1) and (N, k).

    ## Why it matters

    The difference of shapes (N, 1) and (N,) is a matrix of all pairs. Its mean is a number, so
    nothing fails, and the model learns to predict the mean of all targets.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        y, target = model(torch.randn(8, 4)), torch.randn(8)
        loss = (y - target).square().mean()  # <- reported
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        y, target = model(torch.randn(8, 4)).squeeze(-1), torch.randn(8)
        loss = (y - target).square().mean()
        loss.backward()
    ```

    ## When it is intended

    Distances between all pairs are computed this way: write the new axes out, as `a[:, None] -
    b[None, :]`, and nothing is reported.

    ## Not detected

    Broadcasts of other shapes, such as (N, C) with (C,).

    ## See also

    - [Broadcasting semantics](https://docs.pytorch.org/docs/stable/notes/broadcasting.html)
    - [MSELoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html)
    """
    for event in reading.events(Broadcast):
        if len(event.operands) != 2 or not all(o.tensor.shape for o in event.operands):
            continue
        one, other = event.operands
        names = [
            f"{o.label} {list(o.tensor.shape)}" if o.label else f"{list(o.tensor.shape)}"
            for o in (one, other)
        ]
        if len(one.tensor.shape) == len(other.tensor.shape):
            columns = max(one.tensor.shape[-1], other.tensor.shape[-1])
            yield finding(
                "warning",
                f"{event.operation}{at(event.where)} broadcast {names[0]} with {names[1]}: each "
                f"value of the one is compared with {columns} of the other.",
                cause="broadcast of (N, 1) with (N, k)",
                advice="Give both the same shape: reduce the wider one, as with sum(1, "
                "keepdim=True), or make the other as wide.",
                where=event.where,
                nodes=event.nodes,
            )
            continue
        size = max(one.tensor.shape, default=1)
        column = one if len(one.tensor.shape) == 2 else other
        name = column.label or "the one of shape [N, 1]"
        yield finding(
            "warning",
            f"{event.operation}{at(event.where)} broadcast {names[0]} with {names[1]} to "
            f"[{size}, {size}]: each element is paired with every other.",
            cause="broadcast of (N, 1) with (N,)",
            advice=f"Call squeeze(-1) on {name}, so that both shapes are [{size}].",
            where=event.where,
            nodes=event.nodes,
        )


def _axis(reading: Reading, node: Node) -> int | None:
    """Return the dimension of a log_softmax; None for another operation, or if unknown."""
    meta = reading.meta(node.id)
    given = (text.removeprefix("dim=") for text in node.attributes if text.startswith("dim="))
    dim = next(given, "")
    if node.operation != "log_softmax" or meta is None or len(meta.shape) < 2:
        return None
    return int(dim) % len(meta.shape) if dim.lstrip("-").isdigit() else None


def _first(reading: Reading, node: Node) -> int | None:
    """Return the node of the first input; None if it is not in the graph."""
    return next((e.source for e in reading.inputs[node.id] if e.input_nr == 0), None)


def _maker(reading: Reading, node: int) -> Node:
    """Return the node that computed the values, before any views and copies."""
    maker = reading.graph.nodes[node]
    while maker.operation in _MOVES_VALUES and (before := _first(reading, maker)) is not None:
        maker = reading.graph.nodes[before]
    return maker


def _over_samples(reading: Reading) -> Iterator[Finding]:
    """Yield losses that take a distribution over classes, and get one over samples."""
    nodes = reading.graph.nodes
    given: list[tuple[str, str, tuple[int, ...], int | None]] = [
        (node.operation, node.where, (node.id,), edge.source)
        for node in reading.of_operations(_OF_SAMPLES)
        for edge in reading.inputs[node.id]
        if edge.input_nr == 0
    ]
    given += [
        (event.function, event.where, event.nodes, event.operands[0].node)
        for event in reading.events(LossCall)
        if event.function == "kl_div" and event.operands
    ]
    for name, source, users, passed in given:
        first = passed
        while first is not None and nodes[first].operation in _ELEMENTWISE:
            first = next((e.source for e in reading.inputs[first] if e.input_nr == 0), None)
        if first is None or (first == passed and "nll" in name):
            continue  # loss_input reports it by the dimension
        maker, meta = nodes[first], reading.meta(first)
        scores = next((e.source for e in reading.inputs[first]), None)
        if meta is None or len(meta.shape) != 2 or min(meta.shape) < 2 or scores is None:
            continue
        over = maker.operation in ("softmax", "log_softmax") and number(maker, "dim") in (0, -2)
        # A product of two results, such as CLIP's, may be normalized in both directions.
        if over and _is_layer(reading, nodes[scores], scores):
            yield finding(
                "warning",
                f"{name}{at(source)} takes a distribution for each sample, and "
                f"{reading.call(first)}{at(maker.where)} runs over dimension 0, that of the "
                "samples.",
                cause="softmax over the samples",
                advice=f"Call {maker.operation} with dim=1.",
                where=maker.where,
                nodes=(first, *users),
            )


def _is_of_cross_entropy(reading: Reading, node: Node) -> bool:
    """Return True if an nll_loss of the same line takes this log_softmax: a cross_entropy."""
    stack = [node.id]
    while stack:
        for edge in reading.users[stack.pop()]:
            user = reading.graph.nodes[edge.target]
            if user.operation in ("nll_loss", "nll_loss2d"):
                return user.where == node.where
            if user.operation in _MOVES_VALUES:
                stack.append(user.id)
    return False


def _is_layer(reading: Reading, maker: Node, last: int) -> bool:
    """Return True if these are scores of a layer with weights that nothing else uses.

    Args:
        maker: the node that computed the scores.
        last: the last view or copy of them.
    """
    node = maker.id
    while node != last:
        users = reading.users[node]
        if len(users) != 1:
            return False
        node = users[0].target
    nodes = reading.graph.nodes
    sources = [edge.source for edge in reading.inputs[maker.id]]
    before = [edge.source for i in sources for edge in reading.inputs[i]]
    weights = [i for i in (*sources, *before) if nodes[i].leaf]
    return len(reading.users[last]) == 1 and bool(weights)
