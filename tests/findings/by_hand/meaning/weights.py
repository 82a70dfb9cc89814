"""Graphs that trigger the rules on weights, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.findings.rules.meaning.weights import SymmetricRows, UnchangedParameters
from graphviz_torch.graph import Graph
from tests.findings.by_hand.graphs import Case, event, made, model, parameter, stats, told


def product(first: float, second: float, zeros: float = 1.0, others: float = 1.0) -> Graph:
    """Two weights with these norms, and the shares of zeros in their gradients."""
    graph = made(("w", (6, 2), ()), ("v", (2, 6), ()), ("mm", (8, 2), (0,)), ("mm", (8, 6), (2, 1)))
    norms = {"w": first, "v": second}
    parameters = tuple(
        replace(p, norm=norms[p.name], tensor=p.tensor._replace(shape=(2, 6)))
        for p in graph.parameters
    )
    one = graph.nodes[0]._replace(grad_outputs=stats(0.0, zeros))
    other = graph.nodes[1]._replace(grad_outputs=stats(0.0, others))
    nodes = (one, other, *graph.nodes[2:])
    return replace(graph, nodes=nodes, parameters=parameters)


def language_model(head: float, reads: str = "embedding") -> Graph:
    """An embedding of norm 3, and an output layer with this one."""
    rows = (
        ("w", (12, 8), ()),
        ("v", (12, 8), ()),
        (reads, (4, 8), (0,)),
        ("transpose", (8, 12), (1,)),
    )
    graph = made(*rows, ("mm", (4, 12), (2, 3)))
    norms = {"w": 3.0, "v": head}
    shape = graph.nodes[0].outputs[0]
    parameters = tuple(
        replace(p, norm=norms[p.name], tensor=shape) if shape else p for p in graph.parameters
    )
    return replace(graph, parameters=parameters)


def norms_alone(weights: bool) -> Graph:
    flat = model().parameters[0].tensor._replace(shape=(8,))
    scales = [
        replace(parameter(f"norm.{n}", stepped=True), tensor=flat) for n in ("weight", "bias")
    ]
    still = [parameter(f"fc{i}.weight", stepped=weights, requires_grad=False) for i in range(2)]
    learning = [replace(p, requires_grad=weights) for p in still]
    return replace(model(), parameters=(*scales, *learning))


CASES: dict[str, Case] = {
    "untied-weights": Case(
        language_model(3.0),
        "warning",
        "v at net.py:4 has the same values as w, but is a separate parameter, so the two differ "
        "more after each step.",
        [
            language_model(3.001),
            language_model(3.0, reads="sin"),
            language_model(float("nan")),
        ],
    ),
    "zero-init-pair": Case(
        product(0.0, 0.0),
        "warning",
        "w and v are both zero and are multiplied at net.py:3: the gradient of each is all zeros.",
        [
            product(1.0, 0.0),
            product(0.0, 1.0),
            product(0.0, 0.0, zeros=0.5),
            product(0.0, 0.0, others=0.5),  # a modulation, and an output layer, that begin at 0
        ],
    ),
    "symmetric-init": Case(
        told(event(SymmetricRows, nodes=(0,))),
        "warning",
        "All rows of body.weight have the same values before and after the step. They get the "
        "same gradients, so the units stay equal.",
        [told(event(SymmetricRows))],
    ),
    "no-update": Case(
        told(event(UnchangedParameters, nodes=(0,), dtype="bfloat16", rate=1e-4, steps=2)),
        "warning",
        "The step at train.py:7 does not change body.weight: 100% of the sampled elements are "
        "unchanged, although it has a gradient and a learning rate of 0.0001: the update is "
        "too small for bfloat16 and is rounded away.",
        [told(event(UnchangedParameters, dtype="bfloat16"))],
    ),
    "only-norms-train": Case(
        norms_alone(weights=False),
        "info",
        "Only norms and biases learn: norm.weight and norm.bias. Of the 2 weights with more than "
        "one dimension, 2 are frozen.",
        [norms_alone(weights=True), model()],
    ),
}
