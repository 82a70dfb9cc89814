"""Write an autograd graph with the `SummaryWriter` that a program already has."""

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

    Unlike `SummaryWriter.add_graph`, this function runs nothing and needs neither a module nor an
    example input: it shows the graph that autograd recorded in your forward.

    Args:
        output: the tensor on which you call `backward()`, or nested containers of such tensors; or
            a recording or a graph.
        writer: a `SummaryWriter`, or a directory.
        tag: name of the graph in the list of the Graphs tab.
        step: the training step. For each tag, the Graphs tab shows the last step.
        names: names of tensors, as for `trace`.
        backward: True to add the scope "backward", as for `to_tensorboard`.

    Returns:
        The graph that was written.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        TypeError: if `output` or `writer` has the wrong type.
        ValueError: if the graph has no nodes, or cannot be shown.

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
