"""Rules about the scale of scores, such as similarities that are divided by a temperature."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...graph import Finding, Node
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.nodes import SAME_VALUES
from ..directions import Result, constant, number_by
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at
from .losses import is_of_cross_entropy

_PRODUCTS = ("mm", "bmm", "matmul")
_BINARY = "binary_cross_entropy_with_logits"
_NORMS = ("linalg_vector_norm", "norm")
# Operations between a norm and the division by it.
_BELOW_DIVISION = {"clamp", "clamp_min", "maximum", "expand", "add", *SAME_VALUES}
_MOVES = {*SAME_VALUES, "slice", "select", "index", "expand", "masked_fill", "cat", "diagonal"}
_STUCK, _SLOW = 0.5, 0.25  # fractions of the loss of a guess below which the loss cannot fall
_SHARP = 0.2  # a temperature that is meant for similarities between -1 and 1
_REDUCTIONS = ("sum", "mean")
_MAX_DEPTH = 24


@immutable
class SoftTargets(Event):
    """A loss between two distributions whose scores were scaled by different numbers."""

    function: str = ""  # "kl_div"
    scale: float = 1.0  # of the scores of the input
    target_scale: float = 1.0  # of the scores of the target


@rule("warning", of=("log_softmax", _BINARY))
def score_scale(reading: Reading) -> Iterator[Finding]:
    """The scores of a cross entropy are too small, so the loss stays close to that of a guess, or
    too large, because vectors are not normalized although a temperature divides their products.

    ## Why it matters

    Cosine similarities are between -1 and 1. If they are multiplied by a temperature of 0.07
    instead of divided by it, all scores are nearly equal, and so are all probabilities: the loss
    stays close to the logarithm of the number of classes. A tanh before the loss has the same
    effect.

    The product of two vectors grows with their norms. Without a normalization, products that are
    divided by a small temperature make the softmax so sharp that most of its gradients are zero.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    encoder = nn.Linear(8, 4)
    with record(encoder) as recording:
        one = F.normalize(encoder(torch.randn(16, 8)), dim=1)
        other = F.normalize(encoder(torch.randn(16, 8)), dim=1)
        scores = one @ other.T * 0.07
        F.cross_entropy(scores, torch.arange(16)).backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    encoder = nn.Linear(8, 4)
    with record(encoder) as recording:
        one = F.normalize(encoder(torch.randn(16, 8)), dim=1)
        other = F.normalize(encoder(torch.randn(16, 8)), dim=1)
        scores = one @ other.T / 0.07
        F.cross_entropy(scores, torch.arange(16)).backward()
    ```

    ## When it is intended

    Bounded scores keep a model from becoming too certain. A bound above 1, such as that of
    similarities that are divided by a temperature of 0.5, is not reported.

    ## Not detected

    Scores that are scaled by a parameter or another tensor are not checked.

    ## See also

    - [NormFace: why cosine similarities need a scale](https://arxiv.org/abs/1704.06369)
    - [A simple framework for contrastive learning](https://arxiv.org/abs/2002.05709)
    """
    told = set[str]()
    for node in reading.of_operations(("log_softmax", _BINARY)):
        edge = next(iter(reading.inputs[node.id]), None)
        meta = reading.meta(node.id) if edge is None else reading.meta(edge.source, edge.output_nr)
        if edge is None or meta is None or not meta.shape or node.where in told:
            continue
        found = _scale(reading, (edge.source, edge.output_nr))
        if found is None:
            continue
        bound, maker = found
        problem = (
            _narrow_scores(reading, node, meta.shape, bound, maker)
            if bound is not None
            else _sharp_scores(reading, node, maker, edge.source)
        )
        if problem is not None:
            told.add(node.where)
            yield problem


def _loss(reading: Reading, node: Node) -> str:
    if node.operation == _BINARY:
        return _BINARY
    return "cross_entropy" if is_of_cross_entropy(reading, node) else "log_softmax"


def _narrow_scores(
    reading: Reading, node: Node, shape: tuple[int, ...], bound: float, maker: Node
) -> Finding | None:
    """Return the finding about scores whose bounds keep the loss from falling."""
    others = 1 if node.operation == _BINARY else shape[_axis(node, len(shape))] - 1
    spread = bound if node.operation == _BINARY else 2 * bound
    guess, least = math.log(1 + others), math.log(1 + others * math.exp(-spread))
    if others < 1 or bound > 1 or least < _SLOW * guess:
        return None
    kind, advice = "the similarities of normalized vectors", "Divide the similarities by"
    if maker.operation == "tanh":
        kind, advice = "tanh", "Remove the tanh, or divide its result by"
    return finding(
        "warning" if least >= _STUCK * guess else "info",
        f"{_loss(reading, node)}{at(node.where)} got scores between -{bound:.3g} and {bound:.3g} "
        f"from {kind}{at(maker.where)}: its value cannot fall below {least:.3g}, while a guess has "
        f"a loss of {guess:.3g}.",
        cause="scores with narrow bounds",
        advice=f"{advice} a temperature below 1, such as 0.07.",
        where=node.where,
        nodes=(maker.id, node.id),
    )


def _sharp_scores(reading: Reading, node: Node, product: Node, scores: int) -> Finding | None:
    """Return the finding about products of vectors that are divided by a small temperature."""
    scale = 1.0
    for _ in range(_MAX_DEPTH):
        value = reading.graph.nodes[scores]
        if value.id == product.id:
            break
        scale *= number_by(value) or 1.0
        scores = reading.inputs[value.id][0].source
    if abs(scale) * _SHARP < 1 or node.operation == _BINARY:
        return None
    return finding(
        "info",
        f"{_loss(reading, node)}{at(node.where)} got products of vectors{at(product.where)} that "
        f"are divided by {1 / scale:.3g} and are not normalized: such a temperature is meant for "
        "similarities between -1 and 1.",
        cause="similarities of vectors that are not normalized",
        advice=f"Normalize both operands of {product.title}{at(product.where)}, as with "
        "torch.nn.functional.normalize(x, dim=-1).",
        where=product.where,
        nodes=(product.id, node.id),
    )


def _axis(node: Node, dim: int) -> int:
    return int(constant(node, "dim") or 0) % dim


def _scale(reading: Reading, result: Result) -> tuple[float | None, Node] | None:
    """Return the bound of scores and the node that gives them this bound.

    The bound is None for products of two results that are not normalized. None is returned for all
    other scores.
    """
    factor = 1.0
    for _ in range(_MAX_DEPTH):
        node, edges = reading.graph.nodes[result[0]], reading.inputs[result[0]]
        if not edges:
            return None
        by = number_by(node)
        if by is not None:
            factor *= by
        elif node.operation == "tanh":
            return abs(factor), node
        elif node.operation in _PRODUCTS or node.operation == "sum":
            return _of_product(reading, node, abs(factor))
        elif node.operation not in _MOVES - {"cat"}:
            return None
        result = edges[0].source, edges[0].output_nr
    return None


def _of_product(reading: Reading, node: Node, factor: float) -> tuple[float | None, Node] | None:
    edges = reading.inputs[node.id]
    if node.operation == "sum":
        product = reading.graph.nodes[edges[0].source]
        edges = reading.inputs[product.id] if product.operation == "mul" else []
    if len(edges) != 2:
        return None
    if all(_is_normalized(reading, (edge.source, edge.output_nr)) for edge in edges):
        return factor, node
    made = [_maker(reading, (edge.source, edge.output_nr)) for edge in edges]
    # Weights of a layer, and layers that normalize in another way, are left out.
    layers = [each.leaf == "" and each.operation in ("addmm", "mm", "linear") for each in made]
    return (None, node) if all(layers) and node.operation != "sum" else None


def _is_normalized(reading: Reading, result: Result) -> bool:
    """Return True for a result that is divided by its own norm, and possibly moved or joined."""
    stack, count = [result], 0
    while stack and count < _MAX_DEPTH:
        count += 1
        node, edges = reading.graph.nodes[stack[-1][0]], reading.inputs[stack[-1][0]]
        given = [(edge.source, edge.output_nr) for edge in edges]
        stack.pop()
        if node.operation in _MOVES and given:
            stack += given
        elif not (node.operation == "div" and len(given) == 2 and _is_norm(reading, given[1])):
            return False
    return not stack


def _is_norm(reading: Reading, result: Result) -> bool:
    for _ in range(_MAX_DEPTH):
        node, edges = reading.graph.nodes[result[0]], reading.inputs[result[0]]
        if node.operation in _NORMS:
            return True
        if node.operation not in _BELOW_DIVISION or not edges:
            return False
        result = edges[0].source, edges[0].output_nr
    return False


def _maker(reading: Reading, result: Result) -> Node:
    """Return the node that computed the values of a result, before views, copies and joins."""
    for _ in range(_MAX_DEPTH):
        node, edges = reading.graph.nodes[result[0]], reading.inputs[result[0]]
        if node.operation not in _MOVES or not edges:
            break
        result = edges[0].source, edges[0].output_nr
    return reading.graph.nodes[result[0]]


@rule("warning", of=(SoftTargets,))
def unequal_temperatures(reading: Reading) -> Iterator[Finding]:
    """A loss compares two distributions, and a temperature softens only one of them, or softens one
    and sharpens the other.

    ## Why it matters

    In distillation, the student's scores equal the teacher's scores if both are divided by the same
    temperature. If only the teacher's scores are divided by 4, the student learns scores that are
    a quarter of the teacher's, and its probabilities are too uniform.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    teacher, student = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)
    with record(student) as recording:
        x, temperature = torch.randn(16, 4), 4.0
        target = (teacher(x) / temperature).softmax(-1)
        loss = F.kl_div(student(x).log_softmax(-1), target, reduction="batchmean")  # <- reported
        (loss * temperature**2).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    teacher, student = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)
    with record(student) as recording:
        x, temperature = torch.randn(16, 4), 4.0
        target = (teacher(x) / temperature).softmax(-1)
        scores = student(x) / temperature
        loss = F.kl_div(scores.log_softmax(-1), target, reduction="batchmean")
        (loss * temperature**2).backward()
    ```

    ## When it is intended

    Targets that are sharpened, with a temperature below 1, teach a model to be more certain. They
    are not reported.

    Targets that are softened, beside scores without a temperature, act like a label smoothing. They
    are reported as a note, or as a warning if the loss is multiplied by the temperature's square.

    ## Not detected

    Temperatures that are tensors are not compared. A loss that the program computes itself is
    checked only if it multiplies probabilities by log-probabilities.

    ## See also

    - [Distilling the knowledge in a neural network](https://arxiv.org/abs/1503.02531)
    - [Knowledge distillation tutorial](https://docs.pytorch.org/tutorials/beginner/knowledge_distillation_tutorial.html)
    """
    for event in reading.events(SoftTargets):
        softened = [scale < 1 for scale in (event.scale, event.target_scale)]
        both = softened[0] and softened[1]
        if both or not any(softened) or min(event.scale, event.target_scale) <= 0:
            continue
        sharpened = max(event.scale, event.target_scale) > 1
        temperature = 1 / min(event.scale, event.target_scale)
        powers = [
            math.log(factor, temperature)
            for factor in _factors(reading, event.nodes[0] if event.nodes else None)
        ]
        # The gradient is multiplied by the square of a temperature, as for two soft distributions.
        scaled = any(math.isclose(power, 2, rel_tol=0.01) for power in powers)
        scaled |= sum(math.isclose(power, 1, rel_tol=0.01) for power in powers) == 2
        yield finding(
            "warning" if sharpened or scaled else "info",
            f"{event.function}{at(event.where)} compares distributions of different temperatures: "
            f"that of the log-probabilities is {1 / event.scale:.3g}, and that of the target is "
            f"{1 / event.target_scale:.3g}.",
            cause="unequal temperatures",
            advice="Divide both scores by the same temperature before the softmax.",
            where=event.where,
            nodes=event.nodes,
        )


def _factors(reading: Reading, node: int | None) -> list[float]:
    """Return the positive numbers that a result and its products are multiplied by."""
    found = list[float]()
    waiting = [] if node is None else [node]
    for number in waiting:
        for edge in reading.users[number]:
            by = number_by(reading.graph.nodes[edge.target])
            if by is not None and by > 0:
                found.append(by)
            if by is not None or reading.graph.nodes[edge.target].operation in _REDUCTIONS:
                waiting.append(edge.target)
    return found
