"""Compose the default title of a page."""

from __future__ import annotations

from ...graph import Graph
from ...graph.text import listing
from .difference import Difference

_MAX_OUTPUTS_NAMED = 3


def title_of(graph: Graph | Difference) -> str:
    """Return a title with the names of the outputs: "Autograd graph of loss".

    >>> from graphviz_torch.graph import Node
    >>> title_of(Graph((Node(0, "MeanBackward0", (None,), label="loss"),), outputs=((0, 0),)))
    'Autograd graph of loss'
    >>> title_of(Graph(()))
    'Autograd graph'
    """
    if isinstance(graph, Difference):
        if any(graph.titles):
            return graph.direction
        before, after = _names(graph.a) or "a graph", _names(graph.b) or "a graph"
        return f"From {before} to {after}" if before != after else f"Two graphs of {after}"
    names = _names(graph)
    return f"Autograd graph of {names}" if names else "Autograd graph"


def _names(graph: Graph) -> str:
    nodes = [graph.nodes[node] for node, _ in graph.outputs]
    return listing(
        dict.fromkeys(node.label or node.title for node in nodes), _MAX_OUTPUTS_NAMED, last=", "
    )
