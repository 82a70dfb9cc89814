"""Add an autograd graph to a run through its `SummaryWriter`."""

from __future__ import annotations

from typing import Any

from ..graph import Graph, GraphLike, Names, graph_of
from .writer import require, to_tensorboard


def add_autograd_graph(
    output: GraphLike,
    writer: Any,
    *,
    tag: str = "graph",
    step: int = 0,
    names: Names = None,
    backward: bool = False,
) -> Graph:
    """Write the graph of `output` for TensorBoard's Graphs tab.

    Unlike `SummaryWriter.add_graph`, this runs nothing, needs no module and no example input, and
    shows the graph that autograd recorded in your own forward.

    Args:
        output: the tensor to call `backward()` on, or nested containers of such tensors; a
            recording or a graph.
        writer: a `SummaryWriter`, or a directory.
        tag: name in the tab's list.
        step: step of the event; for each tag, the last step is shown.
        names: names of tensors, as for `trace`.
        backward: add a scope "backward", as for `to_tensorboard`.

    Returns:
        The graph that was written.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        TypeError, ValueError: as for `trace` and `to_tensorboard`.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> x = torch.ones(3, requires_grad=True)
    >>> with TemporaryDirectory() as runs:
    ...     written = add_autograd_graph((x * 2).sum(), runs)
    >>> [node.title for node in written.nodes]
    ['AccumulateGrad', 'mul', 'sum']
    """
    require()
    graph = graph_of(output, names=names)
    to_tensorboard(graph, writer, tag=tag, step=step, backward=backward)
    return graph
