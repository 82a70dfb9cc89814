"""A Graph as a value: what it prints, what it refuses."""

from __future__ import annotations

import pytest

from graphviz_torch import Edge, Failure, Graph, Node


def test_a_large_graph_prints_one_line() -> None:
    nodes = tuple(Node(i, "MulBackward0", (None,)) for i in range(8000))
    graph = Graph(nodes, (Edge(0, 1),), ((1, 0),), failure=Failure("RuntimeError", "no"))
    assert repr(graph) == "Graph(8,000 nodes, 1 edge, 1 output, failed: RuntimeError)"
    assert repr(Graph(())) == "Graph(0 nodes)"


def test_a_column_that_node_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="Node has no such column"):
        Graph(()).annotate(modul={})
