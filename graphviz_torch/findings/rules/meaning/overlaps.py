"""Rules about losses of overlap: Dice and intersection over union."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field

from ....graph import Finding, Node
from ....graph.events import OptimizerStep
from ....graph.immutable import mutable
from ....graph.nodes import SAME_VALUES
from ...axes import attribute, number
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at
from ..losses import SCORES, has_weights, maker_of

_ADDING_UP = ("sum", "mean")
# Operations through which a loss rises or falls with its input.
_RISING = {*SAME_VALUES, *_ADDING_UP, "stack", "cat", "select", "slice", "index", "log", "pow"}
_RISING |= {"clamp", "clamp_min", "clamp_max", "add"}
_MAX_TERMS = 12  # a longer denominator is not that of an overlap
_MAX_VISITS = 100  # maximum number of operations in a numerator or denominator
_MAX_PATH = 64  # maximum number of nodes between an overlap and the loss
_SHARES = 3  # products in the denominator of a soft F1 or Tversky index
_EXACT = 0.01  # largest difference from 1 that a constant such as an epsilon explains


@rule("warning", of=("div",))
def overlap_loss(reading: Reading) -> Iterator[Finding]:
    """A Dice or IoU loss does not reward the overlap of prediction and target: it has the wrong
    sign, takes raw scores or a softmax over pixels, or is not 0 for a perfect prediction.

    ## Why it matters

    The quotient of the intersection and the sizes is an overlap only for probabilities. Raw scores
    may be negative or large: unless the sizes are sums of squares, the quotient then has no upper
    bound, and the loss falls below 0.

    For an intersection I and sizes A and B, Dice is 2 I / (A + B) and IoU is I / (A + B - I).
    Without the factor 2, or without the subtraction, no prediction reaches a loss of 0. A loss that
    rises with the overlap trains the model to avoid the target.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Conv2d(3, 1, 3, padding=1)
    target = (torch.rand(4, 1, 8, 8) > 0.5).float()
    with record(model) as recording:
        prediction = model(torch.randn(4, 3, 8, 8))
        intersection = (prediction * target).sum((1, 2, 3))
        size = prediction.sum((1, 2, 3)) + target.sum((1, 2, 3))
        loss = 1 - ((2 * intersection + 1) / (size + 1)).mean()  # <- reported
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Conv2d(3, 1, 3, padding=1)
    target = (torch.rand(4, 1, 8, 8) > 0.5).float()
    with record(model) as recording:
        prediction = model(torch.randn(4, 3, 8, 8)).sigmoid()
        intersection = (prediction * target).sum((1, 2, 3))
        size = prediction.sum((1, 2, 3)) + target.sum((1, 2, 3))
        loss = 1 - ((2 * intersection + 1) / (size + 1)).mean()
        loss.backward()
    ```

    ## When it is intended

    A loss that keeps the prediction away from a region divides by the size of the prediction alone,
    which is not reported. The quotient 2 x y / (x ** 2 + y ** 2) may also compare numbers that are
    not probabilities, because it is at most 1 for any numbers.

    ## Not detected

    A quotient is recognized as an overlap if its numerator adds up the product of the prediction
    and data, and its denominator adds the prediction, or its square, and data. Losses of libraries
    that compute it in a custom Function, and weights for each pixel, are not checked.

    ## See also

    - [V-Net, which introduced the Dice loss](https://arxiv.org/abs/1606.04797)
    - [torch.sigmoid](https://docs.pytorch.org/docs/stable/generated/torch.sigmoid.html)
    """
    told = set[tuple[str, str]]()
    for node in reading.of_operations(("div",)):
        overlap = _read_overlap(reading, node)
        if overlap is None:
            continue
        for found in _judge(reading, overlap):
            if (found.cause, found.where) not in told:
                told.add((found.cause, found.where))
                yield found


@mutable
class _Terms:
    """A sum of products of a number and a quantity, in which sums over elements are left out."""

    # Factors of the elements of nodes, and of products with data, by node.
    plain: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    products: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    data: float = 0.0  # factor of the data that is added
    count: int = 0  # number of times that data is added
    added_up: bool = False  # True if a sum over elements is among the operations
    known: bool = True  # False if the factors could not be read
    visits: int = 0  # number of operations that were read


@mutable
class _Overlap:
    """A quotient of an intersection and the sizes of prediction and target."""

    node: Node  # the quotient
    prediction: int  # node of the prediction, after views
    best: float | None  # value of the quotient for a perfect prediction; None if unknown


def _read_overlap(reading: Reading, node: Node) -> _Overlap | None:
    edges = {edge.input_nr: edge.source for edge in reading.inputs[node.id]}
    if len(edges) != 2:
        return None
    over, under = (_Terms(), _Terms())
    _add_terms(reading, edges[0], 1.0, over)
    if not over.added_up or over.plain or over.count or len(over.products) != 1:
        return None
    _add_terms(reading, edges[1], 1.0, under)
    [product] = over.products
    prediction = _values_of(reading, reading.inputs[product][0].source)
    sizes = bool(under.count) and [*under.plain] == [prediction]
    # The true positives, the false positives and the false negatives.
    shares = product in under.products and len(under.products) == _SHARES and not under.plain
    if not under.added_up or not (sizes or shares):
        return None
    best, data = None, attribute(reading.graph.nodes[product], "data")
    same = all(
        each == product or attribute(reading.graph.nodes[each], "data") == data
        for each in under.products
    )
    if sizes and over.known and under.known and under.count == 1 and same:
        size = under.plain[prediction] + under.data + sum(under.products.values())
        best = over.products[product] / size if size > 0 else None
    return _Overlap(node, prediction, best)


def _add_terms(reading: Reading, node: int, factor: float, terms: _Terms) -> None:
    """Add the terms of a node's result to `terms`, each multiplied by the factor."""
    value, edges = reading.graph.nodes[node], reading.inputs[node]
    operation, data = value.operation, attribute(value, "data")
    terms.visits += 1
    if terms.visits > _MAX_VISITS or len(terms.plain) + len(terms.products) > _MAX_TERMS:
        terms.known = False
    elif operation in _ADDING_UP and edges:
        # The mean over elements divides by the same number in numerator and denominator.
        terms.added_up = True
        _add_terms(reading, edges[0].source, factor, terms)
    elif operation in (*SAME_VALUES, "clamp_min", "clamp") and edges:
        _add_terms(reading, edges[0].source, factor, terms)
    elif operation in ("add", "sub", "rsub"):
        _add_addends(reading, value, factor, terms)
    elif operation in ("mul", "div") and len(edges) == 1 and not data:
        scale = _number(attribute(value, "other"))
        terms.known = terms.known and scale is not None and operation == "mul"
        _add_terms(reading, edges[0].source, factor * (scale or 1.0), terms)
    elif operation == "mul" and data:
        terms.products[node] += factor
    else:
        squared = operation == "mul" and len({edge.source for edge in edges}) == 1
        squared |= operation == "pow" and _number(attribute(value, "exponent")) == 2
        terms.plain[_values_of(reading, edges[0].source if squared else node)] += factor


def _add_addends(reading: Reading, value: Node, factor: float, terms: _Terms) -> None:
    """Add the terms of both operands of an addition or a subtraction."""
    signs = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}[value.operation]
    if attribute(value, "alpha") not in ("", "1"):
        terms.known = False
    edges = reading.inputs[value.id]
    for edge in edges:
        _add_terms(reading, edge.source, factor * signs[edge.input_nr % 2], terms)
    if attribute(value, "data"):
        place = 1 - edges[0].input_nr % 2 if edges else 1
        terms.data += factor * signs[place]
        terms.count += 1


def _values_of(reading: Reading, node: int) -> int:
    """Return the node before views and copies of its result."""
    while reading.graph.nodes[node].operation in SAME_VALUES and reading.inputs[node]:
        node = reading.inputs[node][0].source
    return node


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _judge(reading: Reading, overlap: _Overlap) -> Iterator[Finding]:
    node = overlap.node
    maker = maker_of(reading, overlap.prediction)
    name = reading.call(overlap.prediction)
    if maker.operation in SCORES and has_weights(reading, maker):
        yield finding(
            "warning",
            f"The overlap{at(node.where)} needs probabilities, but the values of {name}"
            f"{at(maker.where)} are raw scores, which may be negative and have no upper bound.",
            cause="an overlap of raw scores",
            advice="Apply sigmoid, or softmax over the classes, before the overlap.",
            where=node.where,
            nodes=(maker.id, node.id),
        )
    elif maker.operation == "softmax":
        yield from _softmax_over_pixels(reading, node, maker)
    directions, perfect = _follow(reading, overlap)
    if directions == {1} and not any(e.maximizes for e in reading.events(OptimizerStep)):
        yield finding(
            "warning",
            f"The loss rises with the overlap{at(node.where)} of {name} and the target, so each "
            "step makes the overlap smaller.",
            cause="an overlap that is minimized",
            advice="Add 1 minus the overlap to the loss, or subtract the overlap.",
            where=node.where,
            nodes=(overlap.prediction, node.id),
        )
    if perfect is not None and abs(perfect - 1) > _EXACT:
        remedy = "2 * intersection / (size + size of the target), which is Dice, or "
        yield finding(
            "warning",
            f"The overlap{at(node.where)} of {name} and the target is {perfect:.2g} for a perfect "
            "prediction, and not 1: its terms count the intersection the wrong number of times.",
            cause="an overlap that is not 1 for a perfect prediction",
            advice=f"Compute {remedy}intersection / (size + size of the target - intersection), "
            "which is IoU.",
            where=node.where,
            nodes=(overlap.prediction, node.id),
        )


def _softmax_over_pixels(reading: Reading, node: Node, maker: Node) -> Iterator[Finding]:
    """Report a softmax over the positions of a convolution's result instead of its channels."""
    dim, meta = number(maker, "dim"), reading.meta(maker.id)
    source = next((edge.source for edge in reading.inputs[maker.id]), None)
    if dim is None or meta is None or source is None or len(meta.shape) < 4:
        return
    if reading.graph.nodes[source].operation != "convolution" or dim % len(meta.shape) == 1:
        return
    over = "samples" if dim % len(meta.shape) == 0 else "positions"
    yield finding(
        "warning",
        f"The overlap{at(node.where)} needs a distribution over the classes, but softmax"
        f"{at(maker.where)} normalizes {list(meta.shape)} over dimension {dim}, the {over}.",
        cause=f"softmax over the {over}",
        advice="Call softmax with dim=1.",
        where=maker.where,
        nodes=(maker.id, node.id),
    )


def _follow(reading: Reading, overlap: _Overlap) -> tuple[set[int], float | None]:
    """Follow an overlap to the loss.

    Returns:
        The signs of the loss's derivative with respect to the overlap, 0 if it is unknown; and the
        value that is subtracted from 1 if the prediction is perfect, None if nothing is.
    """
    roots = {node for node, _ in reading.graph.outputs}
    signs, perfect, best = set[int](), None, overlap.best
    stack = [(overlap.node.id, 1, best)]
    for _ in range(_MAX_PATH):
        if not stack:
            return signs, perfect
        source, sign, value = stack.pop()
        if source in roots:
            signs.add(sign)
        for edge in reading.users[source]:
            user, factor, after = reading.graph.nodes[edge.target], 1, value
            other = _number(attribute(user, "other"))
            two = len(reading.inputs[user.id]) > 1
            if user.operation in ("neg", "rsub", "sub"):
                first = edge.input_nr == 0
                factor = 1 if user.operation == "sub" and first else -1
                factor = -factor if user.operation == "rsub" and not first else factor
                if user.operation == "rsub" and other == 1 and value is not None:
                    perfect = value
                after = None
            elif user.operation in ("mul", "div") and other is not None and not two:
                factor = 1 if other >= 0 else -1
                scale = other if user.operation == "mul" else 1 / other if other else 1.0
                after = None if value is None else value * scale
            elif user.operation == "mul" and attribute(user, "data"):
                after = None  # such as weights of the classes
            elif user.operation not in _RISING:
                signs.add(0)
                continue
            elif user.operation not in (*SAME_VALUES, "mean"):
                after = None
            stack.append((user.id, sign * factor, after))
    return {0}, perfect
