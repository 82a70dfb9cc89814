"""Test the class Graph: what it prints, and which values it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from graphviz_torch import Finding, Graph, record
from graphviz_torch.experiments import Experiment
from graphviz_torch.graph import Edge, Failure, GradientStats, Node, SavedTensor, TensorMeta


def test_a_large_graph_prints_one_line() -> None:
    nodes = tuple(Node(i, "MulBackward0", (None,)) for i in range(8000))
    graph = Graph(nodes, (Edge(0, 1),), ((1, 0),), failure=Failure("RuntimeError", "no"))
    assert repr(graph) == "Graph(8,000 nodes, 1 edge, 1 output, failed: RuntimeError)"
    assert repr(Graph(())) == "Graph(0 nodes)"


def test_a_column_that_node_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="'modul' is not a field of Node"):
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


@pytest.mark.parametrize(
    ("holds", "said", "said_with_a_finding"),
    [
        (True, "holds", "holds"),
        (False, "does not hold", "does not hold"),
        (None, "not known", "note"),
    ],
)
def test_an_experiment_prints_whether_it_holds(
    holds: bool | None, said: str, said_with_a_finding: str
) -> None:
    told = Experiment("batch_twice", "the batch twice", holds, "it is a sum", where="m.py:3")
    finding = Finding("sum-loss", "info", "The loss sums over the samples.")
    assert str(told).startswith(f"batch_twice: {said}  m.py:3\n")
    assert str(replace(told, finding=finding)).startswith(f"batch_twice: {said_with_a_finding}  m")


def test_what_the_outputs_reach_are_the_nodes_that_a_walk_from_them_meets() -> None:
    x, y = (torch.rand(3, requires_grad=True) for _ in range(2))
    with record() as recording:
        loss = (x * y.exp().detach()).sum()
        loss.backward()
    graph = recording.graph
    met, waiting = set(), [loss.grad_fn]
    while waiting:
        fn = waiting.pop()
        if fn is not None and fn not in met:
            met.add(fn)
            waiting += [source for source, _ in fn.next_functions]
    reached = graph.reached()
    assert len(reached) == len(met) < len(graph.nodes)
    assert not any(graph.nodes[i].operation == "exp" for i in reached)
