"""Rules about axes that a view or a layer mistakes for another axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....graph import Finding, Node
from ....graph.events import IneffectiveCall
from ....graph.immutable import immutable
from ....graph.nodes import VIEWS
from ....graph.text import listing
from ...axes import (
    LOSSES,
    Axes,
    Dimension,
    attribute,
    axis_reading,
    batch_axis,
    counts_of_samples,
    is_recurrent,
    keeps_order,
    number,
    sample_axes,
    shape_of,
)
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at

_PADS = ("constant_pad_nd", "cat", "slice", "as_strided")


@immutable
class ReorderedView(IneffectiveCall):
    """A view with the shape of a transpose, although `view` keeps the order of the elements."""

    function: str = ""  # "view"
    before: tuple[int, ...] = ()  # shape of the operand
    after: tuple[int, ...] = ()  # shape of the view


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
    for view in () if keeps_order(reading) else axis_reading(reading).broken:
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


_SOFTMAX = ("softmax", "safe_softmax")  # scaled_dot_product_attention calls safe_softmax
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


@rule("warning", of=LOSSES)
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
    many = counts_of_samples(reading)
    mixing = [node for node in nodes if _mixes(reading, node) and _length(reading, node) in many]
    if not mixing:
        return
    axes = axis_reading(reading).axes
    counted = sample_axes(reading, axes)
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
    if len(own) < 3 or shape_of(reading, node)[-1] != shape_of(reading, node)[-2]:
        return None  # not self-attention: the numbers of queries and keys differ
    return (own[-2], own[0]) if own[-2] and own[0] else None


def _length(reading: Reading, node: Node) -> int:
    """Return the length of the axis that a layer mixes; 0 if the batch axis has length 1."""
    shape = shape_of(reading, node.id)
    attends = node.operation in _SOFTMAX or _is_attention(node)
    along, beside = (-2, 0) if attends else (1 - batch_axis(node), batch_axis(node))
    return shape[along] if len(shape) > 2 and shape[beside] > 1 else 0


def _is_attention(node: Node) -> bool:
    return node.operation.startswith("scaled_dot_product")
