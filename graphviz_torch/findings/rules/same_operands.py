"""Rules about a tensor that is compared with itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from ...graph import Edge, Finding, Node
from ...graph.nodes import SAME_VALUES
from ..directions import Result, number_by
from ..graph_reading import Reading
from ..rule import finding, finds, rule
from ..words import at

_COMPARED = ("mm", "bmm", "sub", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "dot")
_DIFFERENCES = ("sub", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_PARTS = ("slice", "select", "split", "split_with_sizes", "unbind", "unsafe_split", "narrow")
# Operations whose result depends only on their tensors with gradients and on their attributes.
_DETERMINED = {*_PARTS, *SAME_VALUES, "expand", "div", "clamp_min"}
_DETERMINED |= {"linalg_vector_norm", "norm", "relu", "tanh", "sigmoid", "silu", "gelu", "neg"}
_DETERMINED |= {"log_softmax", "softmax"}
_MAX_DEPTH = 24


@rule("warning", of=_COMPARED)
def compared_with_itself(reading: Reading) -> Iterator[Finding]:
    """Two tensors are compared that are the same part of one tensor, taken twice, or a contrastive
    loss also compares each sample with itself.

    ## Why it matters

    A loss between two views of a sample, or between a prediction and a target, has no meaning if
    both are the same values: a difference is 0, and a similarity is as large as possible. The other
    part, which was meant, does not train the model.

    In a contrastive loss, the similarities of all samples contain those of each sample with itself,
    which are the largest. They must be masked before the softmax.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        z = model(torch.randn(16, 4))
        first = z[:8]
        second = z[:8]
        similarity = first @ second.T  # <- reported
        nn.functional.cross_entropy(similarity, torch.arange(8)).backward()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        z = nn.functional.normalize(model(torch.randn(16, 4)), dim=1)
        similarity = z @ z.T / 0.1  # <- reported
        pair = torch.arange(16).roll(8)  # the other view of each sample
        nn.functional.cross_entropy(similarity, pair).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        z = model(torch.randn(16, 4))
        first = z[:8]
        second = z[8:]
        similarity = first @ second.T
        nn.functional.cross_entropy(similarity, torch.arange(8)).backward()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        z = nn.functional.normalize(model(torch.randn(16, 4)), dim=1)
        similarity = (z @ z.T / 0.1).masked_fill(torch.eye(16, dtype=torch.bool), -torch.inf)
        pair = torch.arange(16).roll(8)  # the other view of each sample
        nn.functional.cross_entropy(similarity, pair).backward()
    ```

    ## When it is intended

    A program may compute the similarities within a batch. Those of one tensor, `z @ z.T`, are
    reported only if a cross entropy uses them unmasked.

    ## Not detected

    Parts that are taken by an index tensor or a mask, and tensors without a gradient, are not
    compared.

    ## See also

    - [Tensor indexing](https://docs.pytorch.org/docs/stable/tensor_view.html)
    """
    known: dict[int, Hashable] = {}
    told = set[tuple[str, ...]]()
    for node in reading.of_operations(_COMPARED):
        edges = reading.inputs[node.id]
        if len(edges) != 2 or edges[0].source == edges[1].source:
            continue
        ends = [_part(reading, edge.source) for edge in edges]
        if None in ends or ends[0] is ends[1]:
            continue
        one, other = (end for end in ends if end is not None)
        keys = [_key(reading, end.id, known) for end in (one, other)]
        lines = (one.where, other.where)
        if keys[0] != keys[1] or one.where == other.where or lines in told:
            continue
        told.add(lines)
        result = "is 0" if node.operation in _DIFFERENCES else "compares each sample with itself"
        yield finding(
            "warning",
            f"{node.operation}{at(node.where)} {result}: its operands are the same part of "
            f"{reading.call(reading.inputs[one.id][0].source)}, taken{at(one.where)} and"
            f"{at(other.where)}.",
            cause="a tensor that is compared with itself",
            advice=f"Take the other part{at(other.where)}.",
            where=node.where,
            nodes=(one.id, other.id, node.id),
        )


@finds("compared-with-itself", of=("log_softmax",))
def self_similarity(reading: Reading) -> Iterator[Finding]:
    """Report a softmax over the similarities of a tensor's rows that includes each row itself."""
    for node in reading.of_operations(("log_softmax",)):
        product = _unscaled_node(reading, node)
        meta = None if product is None else reading.meta(product.id)
        if product is None or meta is None or product.operation not in ("mm", "bmm"):
            continue
        edges = reading.inputs[product.id]
        operands = {_untransposed_result(reading, edge) for edge in edges}
        if len(edges) != 2 or len(operands) != 1 or not 1 < meta.shape[-1] == meta.shape[-2]:
            continue
        rows = operands.pop()[0]
        yield finding(
            "warning",
            f"The softmax{at(node.where)} compares each row of {reading.call(rows)} with all rows, "
            f"itself included: {product.title}{at(product.where)} multiplies the tensor with its "
            "own transpose, and the largest score of each row is that of the row with itself.",
            cause="similarities of rows with themselves",
            advice="Set the diagonal of the scores to -inf before the softmax, with masked_fill.",
            where=product.where,
            nodes=(product.id, node.id),
        )


def _unscaled_node(reading: Reading, node: Node) -> Node | None:
    """Return the node that computed the input of a node, before views and products with numbers."""
    for _ in range(_MAX_DEPTH):
        edges = reading.inputs[node.id]
        if not edges:
            return None
        node = reading.graph.nodes[edges[0].source]
        if node.operation not in SAME_VALUES and number_by(node) is None:
            break
    return node


def _untransposed_result(reading: Reading, edge: Edge) -> Result:
    """Return the result that an edge carries, before transposes, views and copies."""
    while reading.graph.nodes[edge.source].operation in SAME_VALUES:
        before = reading.inputs[edge.source]
        if not before:
            break
        edge = before[0]
    return edge.source, edge.output_nr


def _part(reading: Reading, node: int) -> Node | None:
    """Return the node of a slice, or of another part of a tensor, upstream of a node."""
    for _ in range(_MAX_DEPTH):
        value = reading.graph.nodes[node]
        if value.operation in _PARTS:
            return value
        edges = reading.inputs[node]
        if value.operation not in _DETERMINED or not edges:
            return None
        node = edges[0].source
    return None


def _key(reading: Reading, node: int, known: dict[int, Hashable]) -> Hashable:
    """Return a hashable key that is equal for nodes that compute the same values.

    Args:
        reading: the graph.
        node: id of the node.
        known: cache of the keys by node id, to which this call adds.
    """
    if node not in known:
        value, edges = reading.graph.nodes[node], reading.inputs[node]
        known[node] = node
        if value.operation in _PARTS and edges:
            given = tuple((edge.source, edge.output_nr) for edge in edges)
            known[node] = (value.operation, value.attributes, given)
    return known[node]
