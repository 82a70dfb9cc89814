"""Count the floating-point operations (FLOPs) of each node, by the formulas of PyTorch.

The formulas are those of `torch.utils.flop_counter` (2.13), in which a multiply-add counts as two
operations. Only matrix products, convolutions and attention are counted. Attention is counted as if
nothing were masked, also on the CPU, where PyTorch's counter omits it. The backward count includes
operations that a checkpoint recomputes.

Operations whose results need no gradient are not counted, because they have no node. FLOPs are
unknown inside a custom Function, a compiled region, a reentrant checkpoint, a recurrent layer that
is one node, and a bilinear layer.

FLOPs are computed from operations and shapes alone, so a graph from a file gives the same numbers.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ...graph import Edge, Graph, Node

Shape = tuple[int, ...]

# Matrix product -> (input_nr, autograd's name of the saved tensor) of both factors.
_PRODUCTS = {
    "mm": ((0, "self"), (1, "mat2")),
    "bmm": ((0, "self"), (1, "mat2")),
    "addmm": ((1, "mat1"), (2, "mat2")),
    "baddbmm": ((1, "batch1"), (2, "batch2")),
}
_ATTENTION = ("query", "key", "value")
# Operations that are a whole recurrent or bilinear layer, for which PyTorch has no formula.
_RECURRENT = ("_rnn_layer", "cudnn_rnn", "miopen_rnn", "fused_lstm_cell", "fused_gru_cell")
_LAYERS = (*_RECURRENT, "trilinear")


class Flops(NamedTuple):
    """Floating-point operations of a node; None if the shapes do not determine them."""

    forward: int | None
    backward: int | None
    # True if backward also recomputes the node, but it is unknown how often
    more: bool = False


_ZERO_FLOPS = Flops(0, 0)
_UNKNOWN_FLOPS = Flops(None, None)


def flops(graph: Graph) -> list[Flops]:
    """Return the FLOPs of each node, in forward and in backward.

    If no backward was recorded, `backward` counts all gradients that a backward would compute.

    >>> from graphviz_torch.graph import Graph, Node, TensorMeta
    >>> w, y = TensorMeta((4, 16), "float32", "cpu"), TensorMeta((8, 16), "float32", "cpu")
    >>> nodes = (Node(0, "AccumulateGrad", (w,)), Node(1, "MmBackward0", (y,), operation="mm"))
    >>> flops(Graph(nodes, (Edge(0, 1, input_nr=1),)))[1]  # 2 * 8 * 4 * 16, for the weight only
    Flops(forward=1024, backward=1024, more=False)
    """
    nodes = graph.nodes
    ran = any(node.order is not None for node in nodes)
    inputs = graph.inputs()
    once = [_flops(node, _Inputs(node, nodes, inputs[node.id], ran)) for node in nodes]
    return list(map(_with_reruns, nodes, once))


def _with_reruns(node: Node, once: Flops) -> Flops:
    """Add a checkpoint's recomputations of a node to the FLOPs of the node's backward.

    Args:
        node: the node.
        once: FLOPs of the node without recomputation.
    """
    forward, backward, _ = once
    if not forward or backward is None:
        return once
    if node.reruns is None:
        return Flops(forward, backward, more=node.is_checkpointed)
    return Flops(forward, backward + forward * node.reruns)


class _Inputs:
    """The inputs of a node: their shapes, and whether they need a gradient."""

    def __init__(self, node: Node, nodes: tuple[Node, ...], edges: list[Edge], ran: bool) -> None:
        self._node = node
        self._nodes = nodes
        self._edges = edges
        self._ran = ran

    def needs_gradient(self, input_nr: int) -> bool:
        """Return True if backward computes the gradient of this input."""
        if self._ran and self._node.order is None:
            return False
        sources = [self._nodes[edge.source] for edge in self._edges if edge.input_nr == input_nr]
        # `autograd.grad` returns the gradient of an input without running the input's node.
        return any(not self._ran or s.order is not None or any(s.grad_outputs) for s in sources)

    def shape(self, input_nr: int, name: str) -> Shape | None:
        """Return the shape of an input, from its node or from the saved tensor."""
        for edge in self._edges:
            if edge.input_nr == input_nr:
                outputs = self._nodes[edge.source].outputs
                meta = outputs[edge.output_nr] if edge.output_nr < len(outputs) else None
                if meta is not None:
                    return meta.shape
        return next((s.tensor.shape for s in self._node.saved if s.name == name), None)


def _flops(node: Node, inputs: _Inputs) -> Flops:
    operation = node.operation
    output = node.outputs[0] if node.outputs else None
    if output is None:
        return _ZERO_FLOPS
    if operation in _PRODUCTS:
        return _product(operation, output.shape, inputs)
    if operation == "convolution":
        return _convolution(node, output.shape, inputs)
    if operation.endswith(_LAYERS):
        return _UNKNOWN_FLOPS
    # The name of a custom Function ends in "Backward", the name of a built-in node in a digit.
    if node.name.endswith("Backward"):
        return _UNKNOWN_FLOPS
    if operation.startswith("scaled_dot_product"):
        return _attention(output.shape, inputs)
    return _ZERO_FLOPS


def _product(operation: str, output: Shape, inputs: _Inputs) -> Flops:
    (left, left_name), (right, right_name) = _PRODUCTS[operation]
    # The gradient of each factor takes one more product of the same size.
    count = inputs.needs_gradient(left) + inputs.needs_gradient(right)
    a, b = inputs.shape(left, left_name), inputs.shape(right, right_name)
    inner = a[-1:] if a is not None else b[-2:-1] if b is not None else None
    return _times(_count(output, inner), 1, count)


def _convolution(node: Node, output: Shape, inputs: _Inputs) -> Flops:
    known = dict(text.partition("=")[::2] for text in node.attributes)
    groups = known.get("groups", "1")
    places = inputs.shape(0, "input") if known.get("transposed") == "True" else output
    once = _count(output[:1], places and places[2:], inputs.shape(1, "weight"))
    # For the gradient of the weight, PyTorch's formula ignores groups: it counts all channels for
    # each group.
    of_weight = int(groups) if groups.isdecimal() else 1
    return _times(once, 1, inputs.needs_gradient(0) + inputs.needs_gradient(1) * of_weight)


def _attention(output: Shape, inputs: _Inputs) -> Flops:
    query, key, value = (inputs.shape(i, name) for i, name in enumerate(_ATTENTION))
    long, wide = key or value, key or query
    # Each score (query times key) takes one multiply-add per feature.
    scores = _count(output[:-1], long and long[-2:-1])
    if scores is None or wide is None:
        return _times(None, 1, any(map(inputs.needs_gradient, range(3))))
    into, out = wide[-1], output[-1]
    return _times(
        scores, into + out, any(map(inputs.needs_gradient, range(3))) * (3 * into + 2 * out)
    )


def _count(*shapes: Shape | None) -> int | None:
    """Return twice the product of all sizes; None if a shape is unknown."""
    sizes = [size for shape in shapes for size in shape or (-1,)]
    return None if min(sizes, default=0) < 0 else 2 * prod(sizes)


def _times(once: int | None, forward: int, backward: int) -> Flops:
    if once is None:
        return Flops(None, None if backward else 0)
    return Flops(once * forward, once * backward)
