"""Rules about softmaxes and norms that work along the wrong axis."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Edge, Finding
from ....graph.nodes import SAME_VALUES
from ...axes import (
    LAYERS,
    Axes,
    Dimension,
    axis_reading,
    counts_of_samples,
    number,
    numbers,
    sample_axes,
    shape_of,
)
from ...graph_reading import Reading
from ...rule import finding, finds, rule
from ...words import at

# Operations that may be between attention scores, their softmax, and the product with the values.
BETWEEN_PRODUCTS = SAME_VALUES | {"div", "mul", "add", "sub", "masked_fill", "where", "expand"}
BETWEEN_PRODUCTS |= {"dropout", "native_dropout"}
_WEIGHTS = BETWEEN_PRODUCTS - {"div", "sub", "where", "add"}
_OF_NORMS = ("clamp_min", "clamp", "expand", "add")  # between a norm and the division by it


@rule("warning", of=("softmax",))
def normalization_axis(reading: Reading) -> Iterator[Finding]:
    """A softmax or a norm is computed over one axis, but the next matrix product sums over another.

    ## Why it matters

    The result has the same shape for every axis, so no error is raised. But the attention
    weights do not add up to 1 for each query, or the vectors are not normalized: the model is not
    the intended one.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"qk": nn.Linear(6, 16), "v": nn.Linear(6, 8)})
    with record(model) as recording:
        x = torch.randn(3, 5, 6)
        q, k = model["qk"](x).chunk(2, -1)
        weights = (q @ k.transpose(1, 2)).softmax(1)  # <- reported
        (weights @ model["v"](x)).mean().backward()
    ```

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.ModuleDict({"image": nn.Linear(6, 8), "text": nn.Linear(5, 8)})
    with record(model) as recording:
        image = F.normalize(model["image"](torch.randn(4, 7, 6)))  # <- reported
        text = F.normalize(model["text"](torch.randn(4, 5)))
        (image @ text.t()).mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"qk": nn.Linear(6, 16), "v": nn.Linear(6, 8)})
    with record(model) as recording:
        x = torch.randn(3, 5, 6)
        q, k = model["qk"](x).chunk(2, -1)
        weights = (q @ k.transpose(1, 2)).softmax(-1)
        (weights @ model["v"](x)).mean().backward()
    ```

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.ModuleDict({"image": nn.Linear(6, 8), "text": nn.Linear(5, 8)})
    with record(model) as recording:
        image = F.normalize(model["image"](torch.randn(4, 7, 6)), dim=-1)
        text = F.normalize(model["text"](torch.randn(4, 5)))
        (image @ text.t()).mean().backward()
    ```

    ## When it is intended

    Slot attention normalizes over the slots on purpose: silence the rule on the line.

    ## Not detected

    A softmax or norm that feeds no matrix product is not checked.

    ## See also

    - [torch.nn.functional.softmax](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html)
    - [torch.nn.functional.normalize](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html)
    """
    nodes = reading.graph.nodes
    yield from _weights_over_samples(reading)
    axes: list[Axes] | None = None
    for node in reading.of_operations(("softmax",)):
        if not is_of_scores(reading, node.id):
            continue
        axes = axis_reading(reading).axes if axes is None else axes
        dim, own = number(node, "dim"), axes[node.id]
        if dim is None or not own:
            continue
        over = own[dim % len(own)]
        for product, summed in _products(reading, axes, node.id):
            if not over or not summed or not set(over).isdisjoint(summed):
                continue
            if any(set(over) & set(later) for _, later in _products(reading, axes, product)):
                continue  # as in talking-heads attention, the first product mixes heads
            yield finding(
                "warning",
                f"softmax{at(node.where)} runs over dimension {dim} of "
                f"{list(shape_of(reading, node.id))}, and the product{at(nodes[product].where)} "
                "sums over a different dimension, so the weights of a sum do not add up to 1.",
                cause="softmax over a different dimension from the product",
                advice="Normalize over the dimension that the product sums over, usually dim=-1.",
                where=node.where,
                nodes=(node.id, product),
            )
            break


def _weights_over_samples(reading: Reading) -> Iterator[Finding]:
    """Report a softmax over the samples of a batch whose results are multiplied with features."""
    nodes = reading.graph.nodes
    many = counts_of_samples(reading)
    for node in reading.of_operations(("softmax",)):
        dim, shape = number(node, "dim"), shape_of(reading, node.id)
        if dim is None or len(shape) < 2:
            continue
        if shape[dim] not in many or shape[dim] == 1 or is_of_scores(reading, node.id):
            continue
        axes = axis_reading(reading).axes
        over = axes[node.id][dim]
        if not over or over not in sample_axes(reading, axes):
            continue
        weighted = _weighted_product(reading, node.id)
        if weighted is not None and _goes_to_layer(reading, weighted):
            yield finding(
                "warning",
                f"softmax{at(node.where)} runs over dimension {dim} of {list(shape)}, the "
                f"samples of the loss, and weights features{at(nodes[weighted].where)}: each "
                "sample's weights depend on the other samples of its batch.",
                cause="softmax over the samples",
                advice="Normalize over the dimension whose weights should sum to 1, usually dim=1 "
                "or dim=-1.",
                where=node.where,
                nodes=(node.id, weighted),
            )


def _weighted_product(reading: Reading, node: int) -> int | None:
    """Return the elementwise product of weights and another result; None if none is found."""
    nodes, stack = reading.graph.nodes, [node]
    for each in stack:
        for edge in reading.users[each]:
            if nodes[edge.target].operation == "mul":
                sources = {e.source for e in reading.inputs[edge.target]}
                return edge.target if len(sources) == 2 else None
            if nodes[edge.target].operation in _WEIGHTS:
                stack.append(edge.target)
    return None


def _goes_to_layer(reading: Reading, node: int) -> bool:
    """Return True if a layer with a weight is between the node and the loss."""
    nodes, stack, seen = reading.graph.nodes, [node], {node}
    while stack:
        for edge in reading.users[stack.pop()]:
            user = nodes[edge.target]
            if user.operation in LAYERS and _has_weight(reading, user.id):
                return True
            if user.id not in seen:
                seen.add(user.id)
                stack.append(user.id)
    return False


@finds("normalization-axis", of=("linalg_vector_norm",))
def norm_axis(reading: Reading) -> Iterator[Finding]:
    """Report vectors that are normalized over one axis, while their product sums over another.

    An example is F.normalize, without `dim`, of a tensor with axes (batch, tokens, features).
    """
    nodes = reading.graph.nodes
    for node in reading.of_operations(("linalg_vector_norm",)):
        if len(numbers(node, "dim")) != 1:
            continue
        source = next((e.source for e in reading.inputs[node.id]), None)
        division = _division(reading, node.id, source)
        if source is None or division is None:
            continue
        axes = axis_reading(reading).axes
        dim, own = numbers(node, "dim")[0], axes[source]
        if len(own) < 2:
            continue
        over = own[dim % len(own)]
        for product, summed in _products(reading, axes, division):
            if not all(_is_normalized(reading, e.source) for e in reading.inputs[product]):
                continue
            # A product with data, such as the weights of neighbors, has one input in the graph.
            if len(reading.inputs[product]) > 1 and over and set(over).isdisjoint(summed or over):
                yield finding(
                    "warning",
                    f"The norm{at(node.where)} runs over dimension {dim} of "
                    f"{list(shape_of(reading, source))}, and the product{at(nodes[product].where)} "
                    "sums over a different dimension, so the product is not a cosine similarity.",
                    cause="a norm over a different dimension from the product",
                    advice="Pass dim=-1, or the dimension of the features.",
                    where=node.where,
                    nodes=(node.id, division, product),
                )
                break


def is_of_scores(reading: Reading, node: int) -> bool:
    """Return True if a softmax gets attention scores: a matrix product without parameters."""
    nodes, stack, seen = reading.graph.nodes, [node], set[int]()
    while stack:
        for edge in reading.inputs[stack.pop()]:
            before = nodes[edge.source]
            if before.operation in ("bmm", "mm"):
                return len(reading.inputs[before.id]) == 2 and not _has_weight(reading, before.id)
            if before.operation in BETWEEN_PRODUCTS and before.id not in seen:
                seen.add(before.id)
                stack.append(before.id)
    return False


# Operations between a weight and a product; einsum adds dimensions of size 1 to a weight.


def _has_weight(reading: Reading, product: int) -> bool:
    nodes = reading.graph.nodes
    for edge in reading.inputs[product]:
        node = edge.source
        while nodes[node].operation in (*SAME_VALUES, "expand"):
            if not reading.inputs[node]:
                break
            node = reading.inputs[node][0].source
        if nodes[node].leaf:
            return True
    return False


def _products(reading: Reading, axes: list[Axes], node: int) -> Iterator[tuple[int, Dimension]]:
    """Yield the next products that use a result, each with the axis that it sums over.

    Args:
        reading: the graph.
        axes: for each node, the axes of its result.
        node: the node of the result.
    """
    for edge in next_products(reading, node):
        own = axes[edge.source]
        if len(own) > 1:
            yield edge.target, own[-1] if edge.input_nr == 0 else own[-2]


def next_products(reading: Reading, node: int) -> Iterator[Edge]:
    """Yield the edges into the next products that use a result, other than those of weights."""
    nodes, stack, seen = reading.graph.nodes, [node], {node}
    while stack:
        source = stack.pop()
        for edge in reading.users[source]:
            user = nodes[edge.target]
            if user.operation in ("bmm", "mm") and not _has_weight(reading, user.id):
                yield edge
            elif user.operation in _WEIGHTS and user.id not in seen:
                seen.add(user.id)
                stack.append(user.id)


def _is_normalized(reading: Reading, node: int) -> bool:
    """Return True if a node is a tensor divided by a norm, or a view of such a tensor."""
    nodes, inputs = reading.graph.nodes, reading.inputs
    while nodes[node].operation in _WEIGHTS and inputs[node]:
        node = inputs[node][0].source
    stack = [edge.source for edge in inputs[node]] if nodes[node].operation == "div" else []
    for each in stack:
        if nodes[each].operation == "linalg_vector_norm":
            return True
        if nodes[each].operation in _OF_NORMS:
            stack += [edge.source for edge in inputs[each]]
    return False


def _division(reading: Reading, norm: int, source: int | None) -> int | None:
    """Return the node that divides a tensor by its own norm; None if none is found.

    Args:
        reading: the graph.
        norm: node of the norm.
        source: node of the tensor.
    """
    nodes, stack = reading.graph.nodes, [norm]
    for node in stack:
        for edge in reading.users[node]:
            user = nodes[edge.target]
            if user.operation == "div":
                return user.id if any(e.source == source for e in reading.inputs[user.id]) else None
            if user.operation in _OF_NORMS:
                stack.append(user.id)
    return None
