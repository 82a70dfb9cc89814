"""A Graph as a value: what it prints, what it refuses."""

from __future__ import annotations

import pytest

from graphviz_torch import Edge, Failure, GradientStats, Graph, Node, SavedTensor, TensorMeta


def test_a_large_graph_prints_one_line() -> None:
    nodes = tuple(Node(i, "MulBackward0", (None,)) for i in range(8000))
    graph = Graph(nodes, (Edge(0, 1),), ((1, 0),), failure=Failure("RuntimeError", "no"))
    assert repr(graph) == "Graph(8,000 nodes, 1 edge, 1 output, failed: RuntimeError)"
    assert repr(Graph(())) == "Graph(0 nodes)"


def test_a_column_that_node_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="Node has no such column"):
        Graph(()).annotate(modul={})


def test_the_repr_of_a_node_with_all_there_is_fits_a_screen() -> None:
    meta = TensorMeta((8, 128), "float32", "cuda:0")
    stats = GradientStats(1.0, 2.0, 3.0, 0.5, values=tuple(range(64)), tensor=meta)
    saved = SavedTensor("self", meta, 4096)
    node = Node(0, "SplitBackward0", (meta,) * 500, "chunks " * 99, note="x" * 999)
    node = node._replace(saved=(saved,) * 500, grad_outputs=(stats,) * 500, attributes=("n=1",) * 9)
    assert len(repr(node)) < 24 * 80
    assert repr(Node(3, "AccumulateGrad", (meta,), leaf="parameter")) == (
        "Node(id=3, name='AccumulateGrad', outputs=(f32[8, 128] cuda:0,), leaf='parameter')"
    )
