"""Convert arguments to a Graph.

`graph_of` accepts a Graph, and any object whose attribute `graph` is a Graph, such as a recording
or a picture. The package root registers the functions that read tensors and modules, because this
package does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from .graph import Graph
from .registry import read
from .text import shorten, type_text


class HasParameters(Protocol):
    """Interface of an `nn.Module`, whose parameter names can be passed as names of tensors."""

    def named_parameters(self) -> Iterable[tuple[str, Any]]:
        """Return the (name, parameter) pairs."""


# Values that `graph_of` accepts: a Graph, a recording, nested tensors, a module, a program.
GraphLike = Any
Names = Mapping[str, Any] | HasParameters | None


def graph_of(value: Any, *inputs: Any, names: Names = None) -> Graph:
    """Return the graph of a value.

    Args:
        value: a Graph, a recording, a tensor or nested tensors, a module, an exported program of
            `torch.export`, or a graph of `torch.fx`.
        inputs: arguments of the module, which is called once.
        names: names of the tensors, as in `trace`; None uses the names of the caller's variables.

    Raises:
        TypeError: if `value` is none of these, or inputs are given without a module.
        ValueError: if no tensor in `value` has an autograd graph.

    >>> graph_of(Graph(()))
    Graph(0 nodes)
    >>> graph_of("y")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: expected a graph, but got a str ('y'). Pass a Graph, a recording, a tensor...
    """
    if not inputs:
        graph = value if isinstance(value, Graph) else getattr(value, "graph", None)
        if isinstance(graph, Graph):
            return graph
    graph = read(value, inputs, names)
    if isinstance(graph, Graph):
        return graph
    if inputs:
        raise TypeError(
            f"inputs are given for {type_text(value)}; only an nn.Module is called with "
            "inputs. To pass several outputs, pass them as one list."
        )
    raise TypeError(
        f"expected a graph, but got {type_text(value)} ({shorten(repr(value), 60)}). Pass a "
        "Graph, a recording, a tensor that requires a gradient, or a list of such tensors."
    )
