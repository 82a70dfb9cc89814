"""`to_networkx`: convert a graph to networkx, which also writes GraphML, GEXF and other formats."""

from __future__ import annotations

from typing import Any

from ..graph import GraphLike, Node, graph_of
from ..graph.collective import by_node
from ..graph.nodes import columns_except
from ..graph.text import printable

# Fields of `Node` that are written as text in the same way; `_attributes` writes the others.
_DECLARED = columns_except(Node, "scope", "where", "note", "saved", "seconds")


def to_networkx(graph: GraphLike) -> Any:
    """Return the graph as a `networkx.MultiDiGraph`; edges point in the direction of forward.

    Nodes have autograd's `name` and, if recorded, `label`, `operation`, `leaf`, `module`, `where`,
    `note`, `shape` ("2x3", first output), `dtype`, `device`, `order`, `seconds`, `saved_bytes`,
    `gradient_norm` (first output), `attributes` and `collectives`. Edges have `output_nr` and
    `input_nr`; the edge's key is `input_nr`. All attributes are text or numbers, as
    `networkx.write_graphml` requires; characters that XML cannot contain are replaced by Python
    escapes.

    Raises:
        ImportError: if networkx is not installed.
        TypeError: if `graph` is not a graph, a recording or a tensor.

    >>> from graphviz_torch.graph import Edge, Graph
    >>> square = Graph((Node(0, "AccumulateGrad", (), "x"), Node(1, "MulBackward0", ())),
    ...                (Edge(0, 1, 0, 0), Edge(0, 1, 0, 1)))
    >>> made = to_networkx(square)
    >>> made.nodes[0]
    {'name': 'AccumulateGrad', 'label': 'x'}
    >>> made.number_of_edges(0, 1)
    2
    """
    try:
        import networkx  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ImportError("to_networkx needs networkx: pip install networkx.") from None
    value = graph_of(graph)
    made = networkx.MultiDiGraph()
    sent = by_node(value.collectives)
    for node in value.nodes:
        between = "; ".join(map(str, sent.get(node.id, ())))
        made.add_node(node.id, **_attributes(node, printable(between)))
    for edge in value.edges:
        made.add_edge(
            edge.source,
            edge.target,
            key=edge.input_nr,
            output_nr=edge.output_nr,
            input_nr=edge.input_nr,
        )
    return made


def _attributes(node: Node, collectives: str) -> dict[str, str | int | float]:
    meta = next((each for each in node.outputs if each is not None), None)
    stats = next((each for each in node.grad_outputs if each is not None), None)
    found: dict[str, Any] = {
        name: printable(getattr(node, name))
        for name in ("name", "label", "operation", "leaf", "module", "where", "note")
    }
    if meta is not None:
        found["shape"] = "x".join(map(str, meta.shape)) or "scalar"
        found["dtype"], found["device"] = meta.dtype, printable(meta.device)
    found["order"], found["seconds"] = node.order, node.seconds
    found["saved_bytes"] = node.saved_bytes if node.saved else None
    found["gradient_norm"] = None if stats is None else stats.norm
    found["gradient_extent"] = None if stats is None else stats.extent
    found["collectives"] = collectives
    found |= {name: printable(column.text(getattr(node, name))) for name, column in _DECLARED}
    return {name: each for name, each in found.items() if each is not None and each != ""}
