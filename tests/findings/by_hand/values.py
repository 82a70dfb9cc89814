"""Graphs that trigger the rules on gradient values, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graphviz_torch.findings.rules.values import NonfiniteValue
from graphviz_torch.graph import Edge, Graph, Node
from tests.findings.by_hand.graphs import META, Case, chain, event, stats, told


def deep(
    growth: float,
    shared: bool = False,
    last: float | None = None,
    first: float = 1.0,
    order: int | None = 0,
) -> Graph:
    """Eight weights, one behind the other, with a gradient that grows by a factor at each.

    Args:
        last: the gradient at the deepest, which a skip leads to, too.
        first: the gradient at the loss, which a small factor of a branch may scale.
        order: of each weight; None after `autograd.grad` by an input.
    """
    nodes, edges = [], []
    for i in range(8):
        leaf, user = (0 if shared else 2 * i), (i + 1 if shared else 2 * i + 1)
        if not shared or i == 0:
            nodes.append(
                Node(
                    leaf, "AccumulateGrad", (META,), f"fc{i}.weight", leaf="parameter", order=order
                )
            )
        norm = growth ** (7 - i) if i or last is None else last
        norm = norm if i < 7 else first
        nodes.append(Node(user, "MmBackward0", (META,), operation="mm", grad_outputs=stats(norm)))
        edges.append(Edge(leaf, user, 0, 1))
        if i:
            edges.append(Edge(user - (1 if shared else 2), user))
    return Graph(tuple(nodes), tuple(edges), ((len(nodes) - 1, 0),))


def relu(before: float, after: float, users: int = 1) -> Graph:
    """A ReLU and the node before it, with the share of zeros in the gradient at each."""
    graph = chain("w", "AddmmBackward0", "ReluBackward0", "SumBackward0")
    gradients = {1: stats(zeros=before), 2: stats(zeros=after)}
    extra = tuple(Edge(1, 3, 0, nr) for nr in range(1, users))
    return replace(graph.annotate(grad_outputs=gradients), edges=graph.edges + extra)


def units(dead: float) -> Graph:
    """The same, with a bias whose gradient tells the units that are dead."""
    bias = Node(0, "AccumulateGrad", (META._replace(shape=(8,)),), "fc.bias", leaf="parameter")
    graph = relu(0.96, 0.0).annotate(label={0: "fc.bias"}, outputs={0: bias.outputs})
    return graph.annotate(grad_outputs={0: stats(zeros=dead)})


def root(broken: dict[int, Any], **fields: Any) -> Graph:
    """x goes into sqrt and into an addition; what backward found at each node."""
    nodes = (
        Node(0, "AccumulateGrad", (META,), "x", leaf="tensor"),
        Node(1, "SqrtBackward0", (META,), operation="sqrt", where="train.py:5"),
        Node(2, "AddBackward0", (META,), operation="add"),
        Node(3, "SumBackward0", (META,), "loss", operation="sum"),
    )
    edges = (Edge(0, 1), Edge(1, 2), Edge(0, 2, 0, 1), Edge(2, 3))
    graph = Graph(nodes, edges, ((3, 0),), **fields)
    gradients = {i: broken.get(i, stats()) for i in range(4)}
    return graph.annotate(grad_outputs=gradients, order={3: 0, 2: 1, 1: 2, 0: 3})


CASES: dict[str, Case] = {
    "vanishing-gradient": Case(
        deep(0.1),
        "warning",
        "The gradient vanishes with depth: its norm goes from 1 at mm to 1e-07 at mm over 8 nodes, "
        "and fc0.weight and fc1.weight hardly learn.",
        [
            deep(0.5),
            deep(1.0),
            deep(0.1, last=0.0008),
            deep(0.1, first=1e-6),
            deep(0.1, order=None),
        ],
    ),
    "exploding-gradient": Case(
        deep(5.0),
        "warning",
        "The gradient explodes with depth: its norm goes from 1 at mm to 7.8e+04 at mm over 8 "
        "nodes.",
        [deep(2.0), deep(1.0), deep(5.0, order=None), deep(5.0).annotate(call={3: "grad#1"})],
    ),
    "dead-relu": Case(
        relu(0.9995, 0.0),
        "warning",
        "relu is dead: 100.0% of its elements let no gradient through.",
        [
            relu(0.97, 0.0),  # a sparse transformer
            relu(0.9995, 0.9995),  # it was zero already
            relu(0.9995, 0.0, users=2),
            relu(1.0, 1.0),
            units(0.3),
        ],
    ),
    "nonfinite-gradient": Case(
        root({0: stats(inf=2)}),
        "error",
        "sqrt at train.py:5 received a finite gradient (norm 1) and passed 2 Inf to its input x "
        "(f32[64, 8] cpu).",
        [root({}), chain("w", "SqrtBackward0")],
    ),
    "nonfinite-value": Case(
        told(
            event(
                NonfiniteValue,
                where="train.py:5",
                in_loss=True,
                operation="addmm",
                nan=2,
                reason="its divisor has 2 zeros",
                nodes=(1,),
            )
        ),
        "error",
        "addmm at train.py:5 made 2 NaN: its divisor has 2 zeros; the loss is therefore not "
        "finite.",
        [told(event(NonfiniteValue, nodes=(1,)))],  # masked, as it seems
    ),
}
