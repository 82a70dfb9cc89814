"""Compare a traced graph with autograd's own nodes, which a simple search reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from graphviz_torch import Graph
from graphviz_torch.graph import Edge, TensorMeta
from graphviz_torch.tracing import iter_grad_fns


def counted(*tensors: Tensor) -> tuple[int, int]:
    """Count the nodes and edges of the graph of tensors by a simple breadth-first search."""
    seen = [get_gradient_edge(tensor).node for tensor in tensors]
    seen = list(dict.fromkeys(seen))
    edges = 0
    for fn in seen:
        for source, _ in fn.next_functions:
            if source is not None:
                edges += 1
                if source not in seen:
                    seen.append(source)
    return len(seen), edges


def check(graph: Graph, *tensors: Tensor) -> None:
    """Assert that a graph agrees with the tensors from which it was traced."""
    assert (len(graph.nodes), len(graph.edges)) == counted(*tensors)
    fns = iter_grad_fns(list(tensors))
    assert [node.id for node in graph.nodes] == list(range(len(fns)))
    assert [node.name for node in graph.nodes] == [type(fn).__name__ for fn in fns]
    assert list(graph.edges) == [
        Edge(fns.index(source), target, output_nr, input_nr)
        for target, fn in enumerate(fns)
        for input_nr, (source, output_nr) in enumerate(fn.next_functions)
        if source is not None
    ]
    assert all(edge.source < edge.target for edge in graph.edges)
    assert len(graph.outputs) == len(tensors)
    for (node, output_nr), tensor in zip(graph.outputs, tensors, strict=True):
        assert fns[node] is get_gradient_edge(tensor).node
        assert output_nr == tensor.output_nr
        assert graph.nodes[node].outputs[output_nr] == meta(tensor)


def meta(tensor: Tensor) -> TensorMeta:
    return TensorMeta(
        tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), str(tensor.device)
    )


def named(graph: Graph, name: str) -> Any:
    (node,) = [node for node in graph.nodes if node.name == name]
    return node


def labels(graph: Graph) -> dict[str, str]:
    return {node.label: node.name for node in graph.nodes if node.label}
