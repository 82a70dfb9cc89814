"""Find the node at which the gradients of a backward become zero, and the reason."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Edge, GradientStats, Graph, Node
from .graph_reading import Reading

ZERO_BELOW = 1e-12  # a gradient trains nothing if all of its elements are smaller
_FACTORS = ("mul", "div", "mm", "bmm", "addmm", "addcmul", "dot", "mv")
_CHOICES = ("where", "masked_fill", "masked_scatter", "maximum", "minimum", "index_put")
_BOUNDS = ("relu", "threshold", "hardtanh", "clamp", "clamp_min", "clamp_max", "relu6", "elu")
_SLOPES = ("sigmoid", "tanh", "softmax", "log_softmax", "erf", "logsigmoid", "log_sigmoid_forward")


def largest_gradient(graph: Graph) -> float | None:
    """Return the largest element of the parameters' gradients; None if no gradient was recorded."""
    leaves = [graph.nodes[p.node] for p in graph.parameters if p.node is not None]
    found = [stats for leaf in leaves for stats in leaf.grad_outputs if stats is not None]
    if not found:
        return None
    return max(float("inf") if stats.nonfinite else stats.max_abs for stats in found)


def largest_at_users(graph: Graph) -> float:
    """Return the largest element of the gradients at the nodes that use parameters."""
    leaves = {p.node for p in graph.parameters if p.node is not None}
    users = {edge.target for edge in graph.edges if edge.source in leaves}
    stats = (stats for node in users for stats in graph.nodes[node].grad_outputs)
    return max((each.max_abs for each in stats if each is not None), default=0.0)


def passed_gradients(reading: Reading, node: Node) -> list[tuple[Edge, GradientStats]]:
    """Return the edges along which a node passed a gradient, with the gradient's statistics."""
    if node.leaf or not any(node.grad_outputs):
        return []
    pairs = [(edge, reading.stats(edge.source, edge.output_nr)) for edge in reading.inputs[node.id]]
    return [(edge, stats) for edge, stats in pairs if stats is not None]


def are_zero(gradients: Sequence[GradientStats | None]) -> bool:
    """Return True if no gradient has an element that could train anything."""
    return all(
        stats is None or (stats.max_abs < ZERO_BELOW and not stats.nonfinite) for stats in gradients
    )


def reason_for_zeros(reading: Reading, node: Node, edges: list[Edge]) -> tuple[str, str]:
    """Return the reason why a node passes only zero gradients, and the advice to the user.

    Args:
        reading: the graph.
        node: the node.
        edges: the edges along which it passes zeros.
    """
    metas = [reading.meta(edge.source, edge.output_nr) for edge in edges]
    empty = next((meta for meta in metas if meta is not None and 0 in meta.shape), None)
    if empty is not None:
        return f"its input is empty ({empty})", (
            "Check the code that selects the input of this operation."
        )
    uses = max(len(reading.users[edge.source]) for edge in edges)
    if uses > 1:  # the gradient of one use is not recorded, only the sum
        return f"the gradients of the {uses} uses of its input add up to zero", (
            "Check the operations that use its input: their gradients cancel, or each is zero."
        )
    if node.title in _FACTORS:
        return "its other factor is zero", (
            "Check that factor, such as a mask, a weight or a scale."
        )
    if node.title in _CHOICES:
        return "it selects every element from another input", "Check the condition or mask."
    if node.title in _BOUNDS:
        return "its derivative is 0 for every input", (
            "Widen its bounds, or use a leaky activation."
        )
    if node.title in _SLOPES:
        return "it is saturated", "Lower the scale of its input, or normalize it."
    return "its derivative is zero for this input", f"Check the input of {node.title}."
