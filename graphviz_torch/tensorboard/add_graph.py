"""For those who hold a `SummaryWriter`: an autograd graph beside the scalars of a run."""

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

    Unlike `SummaryWriter.add_graph` it runs nothing, needs no module and no example input, and
    shows what autograd recorded in the forward that you ran yourself.

    Args:
        output: what you would call `backward()` on, or any nesting of such tensors; a recording
            or a graph.
        writer: a `SummaryWriter`, or a directory.
        tag: the name in the tab's list.
        step: the step of the event; a tag shows its last step.
        names: what to call the tensors, as for `trace`.
        backward: add a scope "backward", as for `to_tensorboard`.

    Returns:
        The graph that was written.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        TypeError, ValueError: as `trace` and `to_tensorboard`.

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
