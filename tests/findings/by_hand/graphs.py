"""Parts that the graphs made by hand share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from graphviz_torch.graph import (
    Cut,
    Edge,
    Failure,
    GradientStats,
    Graph,
    Node,
    Operand,
    Parameter,
    SavedTensor,
    TensorMeta,
)
from graphviz_torch.graph.events import Event

Kind = TypeVar("Kind", bound=Event)

META = TensorMeta((64, 8), "float32", "cpu")

NUMBER = META._replace(shape=())

MIB = 1 << 20


def stats(norm: float = 1.0, zeros: float = 0.0, **bad: int) -> tuple[GradientStats, ...]:
    return (GradientStats(norm, norm, 0.0, zeros, **bad),)


def chain(*names: str, **fields: Any) -> Graph:
    """One node after the other; a name without "Backward" is a leaf that is a parameter."""
    nodes = tuple(
        Node(i, name, (META,), operation=name.removesuffix("Backward0").lower(), **fields)
        if name.endswith("Backward0")
        else Node(i, "AccumulateGrad", (META,), label=name, leaf="parameter", **fields)
        for i, name in enumerate(names)
    )
    edges = tuple(Edge(i, i + 1) for i in range(len(names) - 1))
    return Graph(nodes, edges, ((len(names) - 1, 0),))


def made(*rows: tuple[str, tuple[int, ...], tuple[int, ...]], **attributes: str) -> Graph:
    """Nodes by operation, shape and inputs, all run in backward; "w" and "v" are parameters.

    Args:
        attributes: of the nodes of an operation: softmax="dim=1".
    """
    nodes, edges = [], []
    for i, (name, shape, inputs) in enumerate(rows):
        leaf = len(name) == 1
        meta = META._replace(shape=shape)
        fields: dict[str, Any] = {"leaf": "parameter", "label": name} if leaf else {}
        if not leaf:
            told = tuple(attributes.get(name, "").split())
            fields = {"operation": name, "attributes": told, "where": f"net.py:{i}"}
        nodes.append(Node(i, name, (meta,), order=len(rows) - i, grad_outputs=stats(), **fields))
        edges += [Edge(source, i, 0, number) for number, source in enumerate(inputs)]
    leaves = [(i, row[0]) for i, row in enumerate(rows) if len(row[0]) == 1]
    owned = tuple(parameter(name, node=i) for i, name in leaves)
    return Graph(tuple(nodes), tuple(edges), ((len(rows) - 1, 0),), parameters=owned)


def parameter(name: str, **fields: Any) -> Parameter:
    fields = {"requires_grad": True, "module_called": True, "has_grad": True, **fields}
    return Parameter(name, META, **fields)


def model(*lost: Parameter, **fields: Any) -> Graph:
    """A graph in which body.weight has a gradient; `lost` may have none."""
    graph = replace(chain("body.weight", "AddmmBackward0"), **fields)
    return replace(graph, parameters=(parameter("body.weight", node=0), *lost))


def kept(*saved: SavedTensor, module: str = "fc") -> Graph:
    graph = chain("w", "AddmmBackward0", "MulBackward0")
    return graph.annotate(saved={1: saved}, module={1: module})


def saved(nbytes: int, elements: int, **fields: Any) -> SavedTensor:
    return SavedTensor("self", TensorMeta((elements,), "float32", "cpu"), nbytes, **fields)


def mixed(first: str, second: str, shape: tuple[int, ...] = (4,)) -> Graph:
    operands = (
        Operand("x", TensorMeta(shape, "float32", first), "train.py:3"),
        Operand("fc.weight", TensorMeta((4, 4), "float32", second), "train.py:8"),
    )
    message = "bad shapes\nstack"
    return replace(model(), failure=Failure("RuntimeError", message, "addmm", "net.py:9", operands))


CUT = Cut("detach", META, before=2, after=(1,), where="net.py:7", label="h")


def cut(cut: Cut = CUT, **fields: Any) -> Graph:
    """head.weight is used by node 2, whose result was cut."""
    graph = chain("body.weight", "AddmmBackward0")
    more = (
        Node(2, "AddmmBackward0", (META,), operation="addmm"),
        Node(3, "AccumulateGrad", (META,), "head.weight", leaf="parameter"),
    )
    lost = parameter("head.weight", **{"has_grad": False, "node": 3} | fields)
    graph = replace(graph, nodes=graph.nodes + more, edges=(*graph.edges, Edge(3, 2)), cuts=(cut,))
    return replace(graph, parameters=(parameter("body.weight", node=0), lost))


def lost(name: str, **fields: Any) -> Parameter:
    return parameter(name, has_grad=False, **fields)


# rule: a graph that triggers it, the severity and the message; then graphs that must not.
def event(kind: type[Kind], **fields: Any) -> Kind:
    """At train.py:7."""
    return kind(**{"where": "train.py:7", **fields})


def told(*events: Event, **fields: Any) -> Graph:
    """A model whose body.weight an optimizer updates, and what the program did beside the graph."""
    graph = model(events=events, **fields)
    return replace(graph, parameters=(parameter("body.weight", node=0, stepped=True),))


COLUMN = Operand("y", TensorMeta((100, 1), "float32", "cpu"), "train.py:5", 1)


class Case(NamedTuple):
    """A graph, what the rule says of it, and near ones of which it must say nothing."""

    graph: Graph
    severity: str
    message: str
    near_misses: list[Graph]
