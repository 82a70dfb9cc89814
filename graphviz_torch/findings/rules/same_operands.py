"""Rules about a tensor that is compared with itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from ...graph import Finding, Node
from ...graph.operations import SAME_VALUES
from ..graph_reading import Reading
from ..rule import finding, rule
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
    """Two tensors are compared that are the same part of one tensor, taken twice.

    ## Why it matters

    A loss between two views of a sample, or between a prediction and a target, has no meaning if
    both are the same values: a difference is 0, and a similarity is as large as possible. The other
    part, which was meant, does not train the model.

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

    ## When it is intended

    A program may compute the similarities within a batch. Those of one tensor, `z @ z.T`, are not
    reported.

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
