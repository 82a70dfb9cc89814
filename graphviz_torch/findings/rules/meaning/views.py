"""Rules about views that move values to another axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....graph import Finding
from ....graph.events import IneffectiveCall
from ....graph.immutable import immutable
from ....graph.operations import VIEWS
from ...axes import (
    keeps_order,
)
from ...graph_reading import Reading
from ...rule import finding, rule
from ...samples import axis_reading
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
