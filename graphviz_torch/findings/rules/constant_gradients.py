"""Find a loss that no parameter of the optimizer changes, by its constant gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graph import Finding, Graph, Node
from ...graph.events import OptimizerStep
from ...graph.units import number_text
from ..rule import finding, finds
from ..words import at
from .silence import ConstantLoss

_DERIVING = ("stack", "cat", "clone", "to_copy", "mul")  # operations that compute weights
_STEPS = 3  # number of steps whose gradients are compared


@finds("constant-loss", reads="steps")
def constant_gradients(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Report a constant loss whose gradients are all constant, too: its inputs do not change."""
    recent = graphs[-_STEPS:]
    losses = [event for event in recent[-1].events if isinstance(event, ConstantLoss)]
    steps = all(any(isinstance(event, OptimizerStep) for event in graph.events) for graph in recent)
    if not losses or not steps or _rounds(recent[-1]):
        return
    norms = [_gradient_norms(graph) for graph in recent]
    if len(norms) == _STEPS and any(norms[0]) and all(each == norms[0] for each in norms):
        loss, made = losses[0], _derived_weights(recent[-1])
        kept = (
            f" The result of {made.operation}{at(made.where)} was probably computed only once."
            if made is not None
            else ""
        )
        yield finding(
            "warning",
            f"The loss was {number_text(loss.value)} at each of {loss.count} backwards"
            f"{at(loss.where)}, and no gradient changed either: the optimizer steps, but the loss "
            f"is computed from other tensors, which stay the same.{kept}",
            cause="a constant loss with constant gradients",
            advice="In each step, compute the loss from the parameters that the optimizer holds, "
            "not from a copy or a stack of them that was made before the loop.",
            where=loss.where,
        )


def _derived_weights(graph: Graph) -> Node | None:
    """Return the first node that computes weights from parameters alone, such as a stack."""
    inputs: dict[int, list[int]] = {}
    for edge in graph.edges:
        inputs.setdefault(edge.target, []).append(edge.source)
    for node in graph.nodes:
        sources = [graph.nodes[i] for i in inputs.get(node.id, ())]
        if sources and node.operation in _DERIVING and all(s.leaf for s in sources):
            return node
    return None


def _rounds(graph: Graph) -> bool:
    """Return True if a node computes in half precision, to which small changes are rounded away."""
    metas = [meta for node in graph.nodes for meta in node.outputs]
    return any(meta is not None and meta.dtype in ("bfloat16", "float16") for meta in metas)


def _gradient_norms(graph: Graph) -> list[float | None]:
    """Return the norms of the gradients at all nodes."""
    stats = [each for node in graph.nodes for each in node.grad_outputs]
    return [None if each is None else each.norm for each in stats]
