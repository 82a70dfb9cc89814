"""Rules about masks of attention scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ....graph import Finding, Node
from ....graph.events import Event
from ....graph.immutable import immutable
from ....graph.nodes import SAME_VALUES
from ...axes import attribute
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at
from .normalization import BETWEEN_PRODUCTS, is_of_scores, next_products

# Fault of a mask:
# - "added": a mask of 0 and 1 is added to the scores
# - "multiplied": a mask of 0 and 1 is multiplied with the scores, before the softmax
# - "afterwards": a mask of 0 and 1 is multiplied with the weights, after the softmax
# - "future": each position may attend to the later ones only
MaskFault = Literal["added", "multiplied", "afterwards", "future"]

_SOFTMAXES = ("softmax", "safe_softmax")
_VISIBLE = -2.0  # a score that is filled with a larger value is not masked by it
_FUNCTIONS = ("scaled_dot_product_attention", "multi_head_attention_forward")


@immutable
class AttentionMask(Event):
    """A mask of attention that hides nothing, or the wrong positions.

    A function other than an attention function may use such a mask for another purpose.
    """

    function: str = ""  # "masked_fill", "scaled_dot_product_attention"
    use: MaskFault = "added"


_EXPLANATIONS: dict[MaskFault, str] = {
    "added": "adds a mask of 0 and 1 to the scores, which hides nothing: a weight changes by a "
    "factor of e at most",
    "multiplied": "multiplies the scores with a mask of 0 and 1 before the softmax, so a masked "
    "score is 0, which does not hide its position",
    "afterwards": "multiplies the weights with a mask of 0 and 1 after the softmax, so the other "
    "weights do not add up to 1, and depend on the masked scores",
    "future": "hides the past: each position attends only to itself and to later positions",
}
_BOOLEAN = "Pass a boolean mask, or set masked scores to -inf before the softmax: "
_FILL = _BOOLEAN + 'scores.masked_fill(mask == 0, float("-inf")).'
_CONVENTIONS = (
    "Negate the mask. It is True for positions to attend to in scaled_dot_product_attention, and "
    "for positions to hide in nn.MultiheadAttention and masked_fill."
)


@rule("warning", of=(AttentionMask, "masked_fill"))
def attention_mask(reading: Reading) -> Iterator[Finding]:
    """A mask of attention scores hides nothing, or hides the past instead of the future.

    ## Why it matters

    A softmax gives a position no weight only if its score is -inf or a large negative number. If a
    mask of 0 and 1 is added to the scores or multiplied with them, or if masked scores are set to 0
    or 1e-9, each position still attends to all others.

    A language model then reads the tokens that it should predict, and padding changes the results
    of other tokens.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    project = nn.Linear(8, 24)
    mask = torch.ones(5, 5).tril()
    with record(project) as recording:
        q, k, v = project(torch.randn(2, 5, 8)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(mask == 0, 1e-9)  # <- reported
        (scores.softmax(-1) @ v).square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    project = nn.Linear(8, 24)
    mask = torch.ones(5, 5).tril()
    with record(project) as recording:
        q, k, v = project(torch.randn(2, 5, 8)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(mask == 0, float("-inf"))
        (scores.softmax(-1) @ v).square().mean().backward()
    ```

    ## When it is intended

    A model that reads its sequences from the end to the beginning attends to later positions on
    purpose. A matrix of 0 and 1 that is added to the scores may be meant as a bias.

    ## Not detected

    Masks that are learned, and masks of attention in custom kernels, are not checked.

    ## See also

    - [scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
    - [MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html)
    """
    told = set[str]()
    for event in reading.events(AttentionMask):
        if event.function not in _FUNCTIONS and not _is_of_attention(reading, event):
            continue
        if event.where in told:
            continue  # nn.MultiheadAttention calls scaled_dot_product_attention
        told.add(event.where)
        yield finding(
            "warning",
            f"{event.function}{at(event.where)} {_EXPLANATIONS[event.use]}.",
            cause=f"a mask of attention: {event.use}",
            advice=_CONVENTIONS if event.use == "future" else _FILL,
            where=event.where,
            nodes=event.nodes,
        )
    for node in reading.of_operations(("masked_fill",)):
        value = attribute(node, "value")
        softmax = _softmax_after(reading, node)
        if softmax is None or node.where in told or not _is_above(value, _VISIBLE):
            continue
        if is_of_scores(reading, node.id) and any(next_products(reading, softmax.id)):
            told.add(node.where)
            effect = "takes all of the weight" if _is_above(value, 100) else "still gets a weight"
            yield finding(
                "warning",
                f"masked_fill{at(node.where)} sets masked scores to {value}, which softmax"
                f"{at(softmax.where)} does not ignore: each masked position {effect}.",
                cause="a mask that fills with a visible score",
                advice='Fill with float("-inf"), or with torch.finfo(scores.dtype).min.',
                where=node.where,
                nodes=(node.id, softmax.id),
            )


def _is_above(text: str, bound: float) -> bool:
    try:
        return float(text) > bound
    except ValueError:
        return False


def _is_of_attention(reading: Reading, event: AttentionMask) -> bool:
    """Return True if the event's node masks the scores or the weights of an attention."""
    for number in event.nodes:
        node = reading.graph.nodes[number]
        if event.use == "afterwards":
            softmax = _softmax_before(reading, node)
            if softmax is None or not is_of_scores(reading, softmax.id):
                continue
            before = any(n.operation in _HIDING for n in _between_scores(reading, softmax))
            behind = any(
                reading.graph.nodes[edge.target].operation in ("div", "sum")
                for edge in reading.users[number]
            )
            if not before and not behind and any(next_products(reading, number)):
                return True
        else:
            softmax = _softmax_after(reading, node)
            if softmax is not None and any(next_products(reading, softmax.id)):
                every = _between_scores(reading, softmax)
                others = [n for n in every if n.id != number and n.operation == "masked_fill"]
                if is_of_scores(reading, softmax.id) and not others:
                    return True
    return False


_HIDING = ("masked_fill", "where", "add", "sub")


def _between_scores(reading: Reading, softmax: Node) -> Iterator[Node]:
    """Yield the nodes between the product of queries and keys and its softmax."""
    stack = [softmax.id]
    for each in stack:
        for edge in reading.inputs[each]:
            node = reading.graph.nodes[edge.source]
            if node.operation in BETWEEN_PRODUCTS and node.id not in stack:
                yield node
                stack.append(node.id)


def _softmax_after(reading: Reading, node: Node) -> Node | None:
    """Return the softmax of the scores that a node masks; None if another operation uses them."""
    stack = [node.id]
    for each in stack:
        for edge in reading.users[each]:
            user = reading.graph.nodes[edge.target]
            if user.operation in _SOFTMAXES:
                return user
            if user.operation in BETWEEN_PRODUCTS and user.id not in stack:
                stack.append(user.id)
    return None


def _softmax_before(reading: Reading, node: Node) -> Node | None:
    """Return the softmax whose weights a node multiplies."""
    for _ in range(8):
        edges = reading.inputs[node.id]
        if len(edges) != 1:
            return None
        node = reading.graph.nodes[edges[0].source]
        if node.operation in _SOFTMAXES:
            return node
        if node.operation not in (*SAME_VALUES, "expand", "mul"):
            return None
    return None
