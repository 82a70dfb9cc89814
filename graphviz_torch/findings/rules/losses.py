"""Rules about losses: inputs of the wrong kind."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Finding, Node
from ...graph.events import LossCall
from ...graph.immutable import NamedTuple
from ...graph.nodes import SAME_VALUES
from ..axes import attribute, axis_reading, number, shape_of
from ..graph_reading import Reading
from ..rule import finding, finds, rule
from ..words import at

# Operations that move or select values without computing.
_MOVES_VALUES = SAME_VALUES | {"slice", "select", "index", "expand"}
SCORES = ("addmm", "mm", "linear", "baddbmm", "convolution", "mkldnn_linear")
_PROBABILITIES = dict.fromkeys(("softmax", "sigmoid"), "probabilities")
_LOG = {"softmax": "probabilities", **dict.fromkeys(SCORES, "raw scores")}


class _ExpectedInput(NamedTuple):
    """The kind of input that a loss takes, and the operations that return a wrong kind."""

    takes: str
    mistakes: dict[str, str]  # operation -> kind of values that it returns
    advice: str


_LOSSES = {
    "log_softmax": _ExpectedInput(
        "raw scores",
        {**_PROBABILITIES, "log_softmax": "log-probabilities"},
        "Remove the {}: cross_entropy applies log_softmax itself.",
    ),
    "binary_cross_entropy_with_logits": _ExpectedInput(
        "raw scores", _PROBABILITIES, "Remove the {}, or use binary_cross_entropy."
    ),
    **dict.fromkeys(
        ("nll_loss", "nll_loss2d"),
        _ExpectedInput(
            "log-probabilities",
            _LOG,
            "Use cross_entropy on the raw scores, or pass nll_loss their log_softmax.",
        ),
    ),
    "ctc_loss": _ExpectedInput("log-probabilities", _LOG, "Pass it log_softmax of the raw scores."),
}


# Losses whose input has a row of values for each sample.
_OF_SAMPLES = ("nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_RECTIFIED = ("relu",)
_ELEMENTWISE = ("log", "clamp", "clamp_min", "clamp_max", "add", "to_copy")


@rule("warning", of={*_LOSSES, *_OF_SAMPLES, LossCall})
def loss_input(reading: Reading) -> Iterator[Finding]:
    """A loss got the wrong kind of input: cross_entropy got probabilities instead of raw scores,
    nll_loss or kl_div got values that are not log-probabilities, or dropout was applied last.

    ## Why it matters

    The loss is finite and falls, but slowly and towards a different minimum. A softmax before
    `cross_entropy` makes gradients small, and the lowest loss that can be reached is far above 0.
    `kl_div` of values that are not logarithms has no meaning.

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

    Losses that the program computes itself, from logarithms and sums, are not checked.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    - [KLDivLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html)
    """
    yield from _over_samples(reading)
    for node in reading.of_operations(_LOSSES):
        first = _first(reading, node)
        if first is None:
            continue
        loss, maker = _LOSSES[node.operation], maker_of(reading, first)
        name = node.operation
        if name == "log_softmax":
            if not is_of_cross_entropy(reading, node):
                continue
            name = "cross_entropy"
        if loss.takes == "log-probabilities":
            yield from _over_another_axis(reading, node, first, maker)
        if maker.operation in _RECTIFIED and loss.takes == "raw scores":
            yield _rectified_scores(reading, name, node, maker)
        gives = loss.mistakes.get(maker.operation)
        if gives is None or (gives == "raw scores" and not _is_layer(reading, maker, first)):
            continue
        yield finding(
            # A second log_softmax returns the same values and only costs time.
            "info" if gives == "log-probabilities" else "warning",
            f"{name}{at(node.where)} takes {loss.takes}, but got {gives} from "
            f"{reading.call(maker.id)}{at(maker.where)}.",
            cause=f"{gives} where {loss.takes} belong",
            advice=loss.advice.format(maker.operation),
            where=node.where,
            nodes=(maker.id, node.id),
        )


def _rectified_scores(reading: Reading, name: str, node: Node, maker: Node) -> Finding:
    """Return the finding about a loss that got the result of a ReLU as raw scores."""
    binary = name.startswith("binary")
    effect = "scores below 0 become 0" + (", a probability of 1/2" if binary else "")
    return finding(
        "warning" if binary else "info",
        f"{name}{at(node.where)} takes raw scores, but got the result of relu from "
        f"{reading.call(maker.id)}{at(maker.where)}: {effect}, and get no gradient.",
        cause="relu before the loss",
        advice="Leave out the ReLU after the last layer.",
        where=node.where,
        nodes=(maker.id, node.id),
    )


# Losses of two arguments of different meaning -> their names.
_ARGUMENTS = {
    "kl_div": ("input, the log-probabilities of the model", "target"),
    "cross_entropy": ("input", "target"),
    "binary_cross_entropy": ("input", "target"),
    "binary_cross_entropy_with_logits": ("input", "target"),
}


@finds("loss-input", reads="end", of=(LossCall,))
def swapped_arguments(reading: Reading) -> Iterator[Finding]:
    """Report a loss whose target requires a gradient while its input is constant."""
    for event in reading.events(LossCall):
        if len(event.operands) < 2 or event.function not in _ARGUMENTS:
            continue
        given, target = event.operands[:2]
        if given.node is not None or target.node is None:
            continue
        first, second = _ARGUMENTS[event.function]
        reverse = event.function == "kl_div"
        yield finding(
            # The reverse divergence, KL(model || teacher), is computed in this way on purpose.
            "info" if reverse else "warning",
            f"{event.function}{at(event.where)} got a constant as {first}, and "
            f"{target.label or 'a result'}, which requires a gradient, as {second}"
            + (": it computes KL(model || other), not KL(other || model)." if reverse else "."),
            cause="arguments of a loss swapped",
            advice="Pass the model's output first and the target second."
            if not reverse
            else "Pass the model's log-probabilities first and the target second; do nothing if "
            "the reverse divergence is intended.",
            where=event.where,
            nodes=event.nodes,
        )


@finds("loss-input", of={*_LOSSES, *_OF_SAMPLES})
def dropout_of_predictions(reading: Reading) -> Iterator[Finding]:
    """Report a dropout that is the last operation before a loss."""
    for node in reading.of_operations({*_LOSSES, *_OF_SAMPLES}):
        first = _first(reading, node)
        maker = None if first is None else maker_of(reading, first)
        if maker is None or attribute(maker, "training") != "True" or not attribute(maker, "p"):
            continue
        name = node.operation
        if name == "log_softmax":
            if not is_of_cross_entropy(reading, node):
                continue
            name = "cross_entropy"
        yield finding(
            "warning",
            f"{name}{at(node.where)} compares the targets with the result of dropout"
            f"{at(maker.where)}, which sets a fraction of {attribute(maker, 'p')} of the "
            "predictions to 0.",
            cause="dropout of the predictions",
            advice="Apply dropout before the last layer, not after it.",
            where=maker.where,
            nodes=(maker.id, node.id),
        )


@finds("loss-input", of=(LossCall,))
def loss_call(reading: Reading) -> Iterator[Finding]:
    """Report probabilities that were passed to kl_div, which takes log-probabilities."""
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
            f"kl_div{at(event.where)} takes log-probabilities, but got probabilities from "
            f"{maker.title}{at(maker.where)}.",
            cause="probabilities where log-probabilities belong",
            advice="Pass log_softmax of the raw scores; the target may still be probabilities.",
            where=event.where,
            nodes=(maker.id, *event.nodes),
        )


def _over_another_axis(reading: Reading, node: Node, first: int, maker: Node) -> Iterator[Finding]:
    """Report log-probabilities over a dimension that is not that of the loss's classes.

    Args:
        reading: the graph.
        node: the node of the loss.
        first: the node of the loss's input.
        maker: the node that computed the input, before views.
    """
    shape, given, dim = shape_of(reading, maker.id), shape_of(reading, first), number(maker, "dim")
    if maker.operation != "log_softmax" or dim is None or len(shape) < 2 or not given:
        return
    axis = dim % len(shape)
    classes = len(given) - 1 if node.operation == "ctc_loss" else min(1, len(given) - 1)
    if first == maker.id:
        wrong = axis != classes
    else:
        axes = axis_reading(reading).axes
        over, meant = axes[maker.id][axis], axes[first][classes]
        # An axis with a new number may be a part of any other axis.
        known = {part for dimension in axes[maker.id] for part in dimension}
        wrong = bool(over) and {*meant} <= known and not {*over} & {*meant}
    if wrong:
        yield finding(
            "warning",
            f"{node.operation}{at(node.where)} takes log-probabilities over dimension {classes}, "
            f"the classes, but got log-probabilities over dimension {axis} from "
            f"{reading.call(maker.id)}{at(maker.where)}.",
            cause="log_softmax over a dimension other than the classes",
            advice=f"Call log_softmax with dim={classes}."
            if first == maker.id
            else "Call log_softmax over the dimension of the classes.",
            where=maker.where,
            nodes=(maker.id, node.id),
        )


def _first(reading: Reading, node: Node) -> int | None:
    """Return the node of the first input; None if that node is not in the graph."""
    return next((e.source for e in reading.inputs[node.id] if e.input_nr == 0), None)


def maker_of(reading: Reading, node: int) -> Node:
    """Return the node that computed the values of a node, skipping views and copies."""
    maker = reading.graph.nodes[node]
    while maker.operation in _MOVES_VALUES and (before := _first(reading, maker)) is not None:
        maker = reading.graph.nodes[before]
    return maker


def maker_of_first_input(reading: Reading, node: Node) -> Node | None:
    """Return the node that computed the first input, before any views and copies.

    Return None if that node is not in the graph.
    """
    first = _first(reading, node)
    return None if first is None else maker_of(reading, first)


def _over_samples(reading: Reading) -> Iterator[Finding]:
    """Report losses whose input is a softmax over the samples instead of the classes."""
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
            continue  # the function `loss_input` reports this case
        maker, meta = nodes[first], reading.meta(first)
        scores = next((e.source for e in reading.inputs[first]), None)
        if meta is None or len(meta.shape) != 2 or min(meta.shape) < 2 or scores is None:
            continue
        over = maker.operation in ("softmax", "log_softmax") and number(maker, "dim") in (0, -2)
        # A product of two results, such as CLIP's similarities, may be normalized along both
        # dimensions.
        if over and _is_layer(reading, nodes[scores], scores):
            yield finding(
                "warning",
                f"{name}{at(source)} takes a distribution for each sample, but "
                f"{reading.call(first)}{at(maker.where)} normalizes over dimension 0, the "
                "samples.",
                cause="softmax over the samples",
                advice=f"Call {maker.operation} with dim=1.",
                where=maker.where,
                nodes=(first, *users),
            )


def is_of_cross_entropy(reading: Reading, node: Node) -> bool:
    """Return True if an nll_loss of the same line uses this log_softmax, as in cross_entropy."""
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
    """Return True if a layer with weights computed the scores, and only the loss uses the scores.

    Args:
        maker: the node that computed the scores.
        last: the last view or copy of the scores.
    """
    node = maker.id
    while node != last:
        users = reading.users[node]
        if len(users) != 1:
            return False
        node = users[0].target
    return len(reading.users[last]) == 1 and has_weights(reading, maker)


def has_weights(reading: Reading, node: Node) -> bool:
    """Return True if a leaf, such as a parameter, is an input of a node, possibly transposed."""
    sources = [edge.source for edge in reading.inputs[node.id]]
    before = [edge.source for i in sources for edge in reading.inputs[i]]
    return any(reading.graph.nodes[i].leaf for i in (*sources, *before))
