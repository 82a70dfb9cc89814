"""Graphs that trigger the rules on terms of a loss, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.graph import Cut, Edge, Graph, Node
from tests.findings.by_hand.graphs import CUT, META, NUMBER, Case, chain, parameter, stats


def summed(cut: Cut = CUT) -> Graph:
    """The loss is the sum of two terms: one of body.weight, and one that was cut."""
    graph = chain("body.weight", "SumBackward0", "AddBackward0")
    graph = graph.annotate(
        outputs=dict.fromkeys((1, 2), (NUMBER,)), order={i: 2 - i for i in range(3)}
    )
    cut = replace(cut, before=0, after=(2,), where="net.py:7", tensor=NUMBER)
    return replace(
        graph, cuts=(cut,), parameters=(parameter("body.weight", node=0, got_gradient=True),)
    )


def two_terms(stepped: bool | None, cut_off: bool = True) -> Graph:
    """The loss is the sum of a term of body.weight, which is stepped, and one of head.weight."""
    graph = chain("body.weight", "SumBackward0", "AddBackward0")
    head = (
        Node(3, "AccumulateGrad", (META,), "head.weight", leaf="parameter"),
        Node(4, "SumBackward0", (NUMBER,), operation="sum"),
    )
    edges = (*graph.edges, Edge(3, 4), Edge(4, 2, 0, 1))
    graph = replace(graph, nodes=graph.nodes + head, edges=edges)
    graph = graph.annotate(outputs={1: (NUMBER,), 2: (NUMBER,)}, order={2: 0, 1: 1, 0: 2})
    graph = graph.annotate(where={2: "train.py:8"})
    cuts = (replace(CUT, before=None, after=(4,)),) if cut_off else ()
    known = parameter("body.weight", node=0, got_gradient=True, stepped=True)
    other = parameter("head.weight", node=3, got_gradient=True, stepped=stepped, in_optimizer=True)
    return replace(graph, cuts=cuts, parameters=(known, other))


def slope(name: str, *, asked: float = 0.0, received: float = 1.0) -> Graph:
    """autograd.grad of a sum of slopes, asked for `x`."""
    graph = chain("x", name, "SumBackward0")
    graph = graph.annotate(where={1: "pinn.py:7", 2: "pinn.py:8"}, order={1: 1, 2: 0})
    return graph.annotate(grad_outputs={0: stats(asked), 1: stats(received), 2: stats(1.0)})


CASES: dict[str, Case] = {
    "unstepped-term": Case(
        two_terms(False),
        "warning",
        "A term of the loss at train.py:8 depends only on head.weight, which the optimizer of "
        "this step does not hold: h was cut by detach() at net.py:7.",
        [two_terms(True), two_terms(None)],
    ),
    "zero-second-derivative": Case(
        slope("ThresholdBackwardBackward0"),
        "warning",
        "The second derivative at pinn.py:8 is zero everywhere: ReLU is piecewise linear. A "
        "term of the loss that uses it trains nothing.",
        [
            slope("TanhBackwardBackward0"),
            slope("ThresholdBackwardBackward0", asked=0.5),  # the loss has another way to x
            slope("ThresholdBackwardBackward0", received=0.0),  # no gradient came so far
            slope("ThresholdBackwardBackward0").annotate(order={0: 2}),  # a gradient penalty
        ],
    ),
    "constant-term": Case(
        summed(),
        "warning",
        "A term of the loss has no gradient and trains nothing: h was cut by detach() at net.py:7.",
        [
            replace(summed(), cuts=(replace(CUT, before=1, after=(1,)),)),  # within a term
            summed().annotate(outputs={2: (META,)}),  # not a single number
            replace(summed(), cuts=(replace(CUT, before=1, after=(2,)),)),  # x - x.detach()
        ],
    ),
}
