"""Read from a graph how `nn.DataParallel` divided a batch."""

from __future__ import annotations

from ..graph import GraphLike, graph_of


def batch_division(graph: GraphLike) -> list[tuple[str, int]]:
    """Return (device, number of samples) of each `nn.DataParallel` replica, in order.

    Both are read from the last Gather node of the graph, which concatenates the outputs of the
    replicas.

    Raises:
        ValueError: if the graph has no Gather node.

    >>> from graphviz_torch.graph import Edge, Graph, Node, TensorMeta
    >>> halves = [Node(i, "ViewBackward0", (TensorMeta((4, 2), "float32", f"cuda:{i}"),))
    ...           for i in range(2)]
    >>> whole = Node(2, "GatherBackward", (TensorMeta((8, 2), "float32", "cuda:0"),))
    >>> graph = Graph((*halves, whole), (Edge(0, 2, input_nr=0), Edge(1, 2, input_nr=1)), ((2, 0),))
    >>> batch_division(graph)
    [('cuda:0', 4), ('cuda:1', 4)]
    """
    graph = graph_of(graph)
    gathers = [node for node in graph.nodes if node.name == "GatherBackward"]
    if not gathers:
        raise ValueError(
            f"The graph ({len(graph.nodes)} nodes) has no GatherBackward: no model ran "
            "in nn.DataParallel on several devices."
        )
    parts = [
        graph.nodes[edge.source].outputs[edge.output_nr] for edge in graph.inputs()[gathers[-1].id]
    ]
    known = [part for part in parts if part is not None]
    whole = gathers[-1].outputs[0]
    if whole is None or not whole.shape:
        return [(part.device, 1) for part in known]
    sizes = [part.shape or (1,) for part in known]
    # The batch dimension is the one in which the sizes of the replicas' outputs add up to the size
    # of the gathered output.
    dim = next(d for d, n in enumerate(whole.shape) if sum(size[d] for size in sizes) == n)
    return [(part.device, size[dim]) for part, size in zip(known, sizes, strict=True)]
