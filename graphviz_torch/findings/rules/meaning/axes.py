"""Rules about views, softmaxes, norms and layers that work along the wrong axis."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

from ....graph import Finding, Node
from ....graph.events.ineffective_calls import ReorderedView
from ....graph.text import listing
from ...axes import (
    LAYERS,
    VIEWS,
    Axes,
    AxisReading,
    Dimension,
    attribute,
    batch_axis,
    is_recurrent,
    keeps_order,
    number,
    numbers,
)
from ...graph_reading import Reading
from ...rule import finding, finds, rule
from ...words import at

# Operations that may be between attention scores, their softmax, and the product with the values.
_BETWEEN_PRODUCTS = {
    "div",
    "mul",
    "add",
    "sub",
    "masked_fill",
    "where",
    "clone",
    "view",
    "unsafe_view",
}
_BETWEEN_PRODUCTS |= {
    "expand",
    "dropout",
    "native_dropout",
    "to_copy",
    "transpose",
    "permute",
    "unsqueeze",
}
_BETWEEN_PRODUCTS |= {"squeeze", "reshape_alias", "t"}
_WEIGHTS = _BETWEEN_PRODUCTS - {"div", "sub", "where", "add"}
_OF_NORMS = ("clamp_min", "clamp", "expand", "add")  # between a norm and the division by it
_SOFTMAX = ("softmax", "safe_softmax")  # scaled_dot_product_attention calls safe_softmax
_PADS = ("constant_pad_nd", "cat", "slice", "as_strided")
_STEPWISE = ("GRU", "RNN")  # computed step by step, if not by cuDNN or MIOpen
_TRANSPOSING = (*_STEPWISE, "LSTM", "MultiheadAttention")
_PROJECTION = "in_proj_weight"  # a parameter of PyTorch's attention
# `batch_first` of a layer that mixes samples -> the dimension along which it mixes, and advice.
_ORDERS: dict[bool | None, tuple[str, str]] = {
    False: (
        " along dimension 0 of the input,",
        "Construct {0} with batch_first=True, or pass (time, batch, features) to {0}.",
    ),
    True: (
        " along dimension 1 of the input,",
        "Construct {0} without batch_first=True, or pass (batch, time, features) to {0}.",
    ),
    None: (
        "",
        "Swap the first two axes of the input, and the first two axes of the output.",
    ),
}
_LOSSES = {"nll_loss", "mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss"}
_LOSSES |= {"binary_cross_entropy_with_logits", "binary_cross_entropy"}


@rule("warning", of=(*VIEWS, ReorderedView))
def view_across_axes(reading: Reading) -> Iterator[Finding]:
    """A view joins a part of one axis with another axis, and so mixes samples, positions or
    channels. Usually a permute was meant.

    ## Why it matters

    The result has the right shape, but its values are at wrong positions: attention heads get
    features of other positions, or images are mixed with each other. The model still trains, but is
    much worse.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    project = nn.Linear(6, 8)
    with record(project) as recording:
        q = project(torch.randn(3, 5, 6)).view(3, 5, 2, 4)
        heads = q.reshape(3, 2, 5, 4)  # <- reported
        heads.square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    project = nn.Linear(6, 8)
    with record(project) as recording:
        q = project(torch.randn(3, 5, 6)).view(3, 5, 2, 4)
        heads = q.transpose(1, 2)
        heads.square().mean().backward()
    ```

    ## When it is intended

    Pixel shuffles and image patches may be written with views on purpose. Use `permute` for them,
    or silence the rule on the line.

    ## Not detected

    Views of data that no gradient reaches are not checked, unless the data is the input of the
    recorded model.

    ## See also

    - [torch.Tensor.view](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.view.html)
    - [torch.permute](https://docs.pytorch.org/docs/stable/generated/torch.permute.html)
    """
    reported: set[str] = set()
    for title, before, after, where, nodes in (*_broken_views(reading), *_data_views(reading)):
        if not where or where in reported:
            continue
        reported.add(where)
        yield finding(
            "warning",
            f"{title}{at(where)} turns {list(before)} into {list(after)} without keeping the "
            "order of the axes: it mixes values of several samples or positions.",
            cause="a view across axes",
            advice="Move the axes first, with permute or transpose, and join only adjacent axes "
            "in a view.",
            where=where,
            nodes=nodes,
        )


_View = tuple[str, Sequence[int], Sequence[int], str, tuple[int, ...]]


def _broken_views(reading: Reading) -> Iterator[_View]:
    nodes = reading.graph.nodes
    for view in () if keeps_order(reading) else _axis_reading(reading).broken:
        node = nodes[view.node]
        source = next((e.source for e in reading.inputs[view.node]), None)
        around = [nodes[e.target].operation for e in reading.users[view.node]]
        if source is not None:
            while nodes[source].operation in ("clone", "view") and reading.inputs[source]:
                source = reading.inputs[source][0].source
            around.append(nodes[source].operation)
        wide = [size for size in view.before if size > 1]
        kept = [size for size in view.after if size in wide and size > 1]
        if not kept or len(wide) < 2 or any(name in _PADS for name in around):
            continue  # relative attention shifts positions by padding, views and slices on purpose
        yield node.title, view.before, view.after, node.where, (node.id,)


def _data_views(reading: Reading) -> Iterator[_View]:
    for event in reading.events(ReorderedView):
        yield event.function, event.before, event.after, event.where, ()


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
        if not _is_of_scores(reading, node.id):
            continue
        axes = _axis_reading(reading).axes if axes is None else axes
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
                f"{list(_shape(reading, node.id))}, and the product{at(nodes[product].where)} sums "
                "over a different dimension, so the weights of a sum do not add up to 1.",
                cause="softmax over a different dimension from the product",
                advice="Normalize over the dimension that the product sums over, usually dim=-1.",
                where=node.where,
                nodes=(node.id, product),
            )
            break


def _weights_over_samples(reading: Reading) -> Iterator[Finding]:
    """Report a softmax over the samples of a batch whose results are multiplied with features."""
    nodes = reading.graph.nodes
    many = _counts_of_samples(reading)
    for node in reading.of_operations(("softmax",)):
        dim, shape = number(node, "dim"), _shape(reading, node.id)
        if dim is None or len(shape) < 2:
            continue
        if shape[dim] not in many or shape[dim] == 1 or _is_of_scores(reading, node.id):
            continue
        axes = _axis_reading(reading).axes
        over = axes[node.id][dim]
        if not over or over not in _samples(reading, axes):
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
        axes = _axis_reading(reading).axes
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
                    f"{list(_shape(reading, source))}, and the product{at(nodes[product].where)} "
                    "sums over a different dimension, so the product is not a cosine similarity.",
                    cause="a norm over a different dimension from the product",
                    advice="Pass dim=-1, or the dimension of the features.",
                    where=node.where,
                    nodes=(node.id, division, product),
                )
                break


@rule("warning", of=_LOSSES)
def batch_taken_for_time(reading: Reading) -> Iterator[Finding]:
    """A recurrent or attention layer mixes the samples of the batch, because its input is
    batch-first without `batch_first=True`, or time-first with `batch_first=True`.

    ## Why it matters

    By default, dimension 0 of the input of recurrent and attention layers is time. If dimension 0
    is the batch, the layer mixes samples: each prediction depends on the other samples of the
    batch, and scores change with the batch size.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.ModuleDict({"body": nn.Linear(4, 6), "rnn": nn.LSTM(6, 8), "out": nn.Linear(40, 3)})
    with record(model) as recording:
        h, _ = model["rnn"](model["body"](torch.randn(9, 5, 4)))  # <- reported
        F.cross_entropy(model["out"](h.flatten(1)), torch.arange(9) % 3).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    rnn = nn.LSTM(6, 8, batch_first=True)
    model = nn.ModuleDict({"body": nn.Linear(4, 6), "rnn": rnn, "out": nn.Linear(40, 3)})
    with record(model) as recording:
        h, _ = model["rnn"](model["body"](torch.randn(9, 5, 4)))
        F.cross_entropy(model["out"](h.flatten(1)), torch.arange(9) % 3).backward()
    ```

    ## When it is intended

    Attention over a support set mixes samples on purpose.

    ## Not detected

    Nothing is reported if the axis of the samples cannot be inferred from the loss.

    ## See also

    - [torch.nn.LSTM](https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html)
    - [torch.nn.MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html)
    """
    nodes = reading.graph.nodes
    # If no layer mixes an axis that is as long as the batch, no further check is needed.
    many = _counts_of_samples(reading)
    mixing = [node for node in nodes if _mixes(reading, node) and _length(reading, node) in many]
    if not mixing:
        return
    axes = _axis_reading(reading).axes
    counted = _samples(reading, axes)
    taken: dict[str, list[Node]] = {}  # key: line, so that repeated blocks become one finding
    for node in mixing:
        pair = _mixing_axes(reading, axes, node.id)
        if pair is None:
            continue
        along, beside = pair
        if any(c == along and set(c).isdisjoint(beside) for c in counted):
            taken.setdefault(node.where or node.module, []).append(node)
    for found in taken.values():
        names = list(dict.fromkeys(node.module or node.title for node in found))
        mixes, it_is, it_takes, it = "mixes", "it is", "it takes", "it"
        if len(names) > 1:
            mixes, it_is, it_takes, it = "mix", "they are", "they take", "them"
        where, advice = _ORDERS[_is_batch_first(reading, found[0])]
        yield finding(
            "warning",
            f"{listing(names)}{at(found[0].where)} {mixes}{where.format(it_is)} across the "
            f"samples of the loss: {it_takes} the batch for time.",
            cause="the batch taken for time",
            advice=advice.format(it),
            where=found[0].where,
            nodes=tuple(node.id for node in found),
        )


def _is_batch_first(reading: Reading, node: Node) -> bool | None:
    """Return `batch_first` of the layer that a node belongs to; None if unknown.

    If the node has no such attribute, a PyTorch layer with `batch_first=True` is recognized by the
    transpose at its end.
    """
    if (known := attribute(node, "batch_first")) != "":
        return known == "True"
    if node.module and _torch_class(reading, node) not in _TRANSPOSING:
        return None
    nodes = reading.graph.nodes
    own = [one for one in nodes if one.module == node.module and one.operation == "transpose"]
    return any(
        {number(one, "dim0"), number(one, "dim1")} == {0, 1}
        and all(nodes[edge.target].module != node.module for edge in reading.users[one.id])
        for one in own
    )


def _mixes(reading: Reading, node: Node) -> bool:
    """Return True if a node mixes positions, as a recurrent layer or attention does."""
    return (
        is_recurrent(node)
        or (node.module != "" and (node.operation in _SOFTMAX or _is_attention(node)))
        or (
            node.operation == "stack"
            and _torch_class(reading, node) in _STEPWISE
            and number(node, "dim") == 0
        )
    )


def _torch_class(reading: Reading, node: Node) -> str:
    """Return the class of the node's PyTorch layer, such as "GRU"; "" for other modules.

    The sizes that `Node.module_class` of a recurrent layer also contains are left out.
    """
    name, sizes, _ = node.module_class.rpartition("/")[2].partition("(")
    path = f"{node.module}.{_PROJECTION}" if node.module else _PROJECTION
    return name if sizes or any(p.name == path for p in reading.graph.parameters) else ""


def _mixing_axes(
    reading: Reading, axes: list[Axes], node: int
) -> tuple[Dimension, Dimension] | None:
    """Return the axis along which a layer mixes values, and the batch axis; None if unknown."""
    own, operation = axes[node], reading.graph.nodes[node].operation
    if operation == "stack":  # stacks the results of all time steps
        return (own[0], own[1]) if len(own) == 3 and own[0] and own[1] else None
    if _is_attention(reading.graph.nodes[node]):
        query, key = ([e for e in reading.inputs[node] if e.input_nr == i] for i in (0, 1))
        if not query or not key:
            return None
        own = axes[query[0].source]
        if len(own) < 3 or len(own) != len(axes[key[0].source]):
            return None
        same = own[-2] == axes[key[0].source][-2]  # self-attention
        return (own[-2], own[0]) if same and own[-2] and own[0] else None
    if operation not in _SOFTMAX:
        one = next((axes[e.source] for e in reading.inputs[node] if e.input_nr == 0), own)
        beside = batch_axis(reading.graph.nodes[node])
        known = len(own) == 3 and own[1 - beside] and one[beside]
        return (own[1 - beside], one[beside]) if known else None
    if len(own) < 3 or _shape(reading, node)[-1] != _shape(reading, node)[-2]:
        return None  # not self-attention: the numbers of queries and keys differ
    return (own[-2], own[0]) if own[-2] and own[0] else None


def _length(reading: Reading, node: Node) -> int:
    """Return the length of the axis that a layer mixes; 0 if the batch axis has length 1."""
    shape = _shape(reading, node.id)
    attends = node.operation in _SOFTMAX or _is_attention(node)
    along, beside = (-2, 0) if attends else (1 - batch_axis(node), batch_axis(node))
    return shape[along] if len(shape) > 2 and shape[beside] > 1 else 0


def _losses(reading: Reading) -> list[Node]:
    return [n for n in reading.graph.nodes if n.operation in _LOSSES and n.order is not None]


def _counts_of_samples(reading: Reading) -> set[int]:
    """Return the batch sizes of the losses."""
    shapes = (_first_shape(reading, node.id) for node in _losses(reading))
    return {shape[0] for shape in shapes if shape}


def _samples(reading: Reading, axes: list[Axes]) -> list[Dimension]:
    """Return the axis of the samples of each loss, the first axis of its input."""
    every = (_sample_axes(reading, axes, node.id) for node in _losses(reading))
    return [dims[0] for dims in every if dims and dims[0]]


def _first_shape(reading: Reading, node: int) -> tuple[int, ...]:
    source = next((e.source for e in reading.inputs[node] if e.input_nr == 0), None)
    return () if source is None else _shape(reading, source)


def _is_attention(node: Node) -> bool:
    return node.operation.startswith("scaled_dot_product")


def _sample_axes(reading: Reading, axes: list[Axes], node: int) -> Axes:
    source = next((e.source for e in reading.inputs[node] if e.input_nr == 0), None)
    return () if source is None else axes[source]


def _axis_reading(reading: Reading) -> AxisReading:
    """Return the axes of a graph; they are computed once and cached."""
    found: AxisReading | None = reading.__dict__.get("_axes")
    if found is None:
        # A weak reference to the reading avoids a reference cycle.
        found = reading.__dict__["_axes"] = AxisReading(weakref.proxy(reading))
    return found


def _shape(reading: Reading, node: int) -> tuple[int, ...]:
    meta = reading.meta(node)
    return () if meta is None else tuple(meta.shape)


def _is_of_scores(reading: Reading, node: int) -> bool:
    """Return True for a softmax of attention scores, that is, of a product without parameters."""
    nodes, stack, seen = reading.graph.nodes, [node], set[int]()
    while stack:
        for edge in reading.inputs[stack.pop()]:
            before = nodes[edge.source]
            if before.operation in ("bmm", "mm"):
                return len(reading.inputs[before.id]) == 2 and not _has_weight(reading, before.id)
            if before.operation in _BETWEEN_PRODUCTS and before.id not in seen:
                seen.add(before.id)
                stack.append(before.id)
    return False


# Operations between a weight and a product; einsum adds dimensions of size 1 to a weight.
_WEIGHT_VIEWS = ("t", "transpose", "expand", "view", "permute", "unsqueeze", "reshape_alias")


def _has_weight(reading: Reading, product: int) -> bool:
    nodes = reading.graph.nodes
    for edge in reading.inputs[product]:
        node = edge.source
        while nodes[node].operation in _WEIGHT_VIEWS:
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
    nodes, stack, seen = reading.graph.nodes, [node], {node}
    while stack:
        source = stack.pop()
        for edge in reading.users[source]:
            user = nodes[edge.target]
            if user.operation in ("bmm", "mm") and not _has_weight(reading, user.id):
                own = axes[source]
                if len(own) > 1:
                    yield user.id, own[-1] if edge.input_nr == 0 else own[-2]
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
