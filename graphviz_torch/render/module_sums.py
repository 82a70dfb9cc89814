"""Sum values by module: FLOPs, parameters, bytes saved for backward, gradient norms.

The formulas for floating-point operations (FLOPs) are those of `torch.utils.flop_counter` (2.13),
in which a multiply-add counts as two operations. Only matrix products, convolutions and attention
are counted. Attention is counted as if nothing were masked, also on the CPU, where PyTorch's
counter omits it. The backward count includes operations that a checkpoint recomputes.

Operations whose results need no gradient are not counted, because they have no node. FLOPs are
unknown inside a custom Function, a compiled region, a reentrant checkpoint, a recurrent layer that
is one node, and a bilinear layer.

FLOPs are computed from operations and shapes alone, so a graph from a file gives the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import field
from math import prod
from typing import Any

from ..graph import Edge, Graph, ModuleRow, Node, Parameter, TensorMeta
from ..graph.immutable import NamedTuple, immutable, mutable
from ..graph.nodes import columns_of, is_recorded


@immutable
class ModuleSummary:
    """Values of one module and its submodules. A value that was not recorded is None."""

    module: str  # path; "" for the total, and for the model itself
    module_class: str
    calls: int | None  # number of calls of forward
    output: TensorMeta | None  # output of the last call
    parameters: int  # number of elements of all parameters; a shared tensor counts once
    trainable: int  # number of these elements that require grad
    flops_forward: int  # only of the operations that are counted
    flops_backward: int
    flops_unknown: int  # number of nodes with unknown FLOPs, which the sums do not include
    saved_bytes: int | None  # bytes saved for backward
    gradient_norm: float | None  # norm over all parameters, divided by the loss scale
    gradient_ratio: float | None  # gradient_norm divided by the norm of the parameters
    seconds: float | None  # time in backward
    row: ModuleRow  # other recorded values; sums include submodules
    sent_bytes: int | None = None  # bytes sent to other ranks; None if nothing was sent
    partial: int = 0  # number of parameters whose gradient is known for the local shard only

    @property
    def depth(self) -> int:
        """Number of names in the path; 0 for the total and for the model itself."""
        return self.module.count(".") + 1 if self.module else 0


@mutable
class Sums:
    """Running sums over the nodes of a module and its submodules."""

    first: float = math.inf  # position of the module's first operation in the order of forward
    last: Node | None = None  # the last node whose output leaves the module
    kind: str = ""
    scopes: set[str] = field(default_factory=set)
    parameters: int = 0
    trainable: int = 0
    forward: int = 0
    backward: int = 0
    unknown: int = 0
    saved: int | None = None
    seconds: float | None = None
    gradient: float | None = None  # gradient norm over all parameters
    weights: float | None = None
    sent: int | None = None
    partial: int = 0
    recorded: dict[str, Any] = field(default_factory=dict)  # field of `ModuleRow` -> value

    def add(self, node: Node, operations: Flops, moment: float, *, leaves: bool) -> None:
        """Add the values of an operation to the sums.

        Args:
            node: the operation.
            operations: FLOPs of the operation.
            moment: position of the operation in the order of forward.
            leaves: True if the operation's output is used outside of the module.
        """
        self.first = min(self.first, moment)
        if leaves:
            self.last = node
        self.forward += operations.forward or 0
        self.backward += operations.backward or 0
        self.unknown += None in operations or operations.more
        if node.saved:
            self.saved = (self.saved or 0) + node.saved_bytes
        if node.seconds is not None:
            self.seconds = (self.seconds or 0.0) + node.seconds

    def row(self, path: str, scale: float) -> ModuleSummary:
        norm = None if self.gradient is None else self.gradient / scale
        weights = self.weights
        output = None if self.last is None else next(filter(None, self.last.outputs), None)
        ratio = norm / weights if norm is not None and weights else None
        return ModuleSummary(
            module=path,
            module_class=self.kind,
            calls=len(self.scopes) or None,
            output=output,
            parameters=self.parameters,
            trainable=self.trainable,
            flops_forward=self.forward,
            flops_backward=self.backward,
            flops_unknown=self.unknown,
            saved_bytes=self.saved,
            gradient_norm=norm,
            gradient_ratio=ratio,
            seconds=self.seconds,
            sent_bytes=self.sent,
            partial=self.partial,
            row=ModuleRow(path, **self.recorded),
        )


def sums_by_module(graph: Graph) -> tuple[dict[str, Sums], Sums]:
    """Return the sums of each module, and the sums of the model itself.

    Returns:
        (module path -> sums, sums of the model itself). The path "" has the total of the graph. The
        sums of the model are empty unless it computes something outside of its submodules.
    """
    found: dict[str, Sums] = {"": Sums()}
    root = Sums()
    roots = {node.module_class for node in graph.nodes if not node.module and node.module_class}
    root.kind = roots.pop() if len(roots) == 1 else ""
    leaving = _output_depths(graph)
    backwards = any(node.order is not None for node in graph.nodes)
    for node, operations in zip(graph.nodes, flops(graph), strict=True):
        # The order of forward is the reverse of the order in which backward ran the nodes. Without
        # a recorded backward, it is the order of the ids.
        moment = node.id if node.order is None else -node.order if backwards else node.id
        kinds, scopes = node.module_class.split("/"), node.scope.split(".")
        if root.kind and not node.leaf and (node.module or node.module_class):
            root.add(node, operations, moment, leaves=leaving[node.id] <= 0)
        for depth, path in enumerate(_path_prefixes(node.module)):
            sums = found.setdefault(path, Sums())
            if depth and len(kinds) >= depth:
                sums.kind = sums.kind or kinds[depth - 1]
            if node.leaf:
                continue
            if depth and node.scope:
                sums.scopes.add(".".join(scopes[:depth]))
            sums.add(node, operations, moment, leaves=leaving[node.id] <= depth)
    for parameter, path in _parameters(graph):
        elements = math.prod(max(size, 0) for size in parameter.tensor.shape)
        node_id = parameter.node
        stats = None if node_id is None else next(iter(graph.nodes[node_id].grad_outputs), None)
        whole = (
            parameter.grad is not None and parameter.shard_count == 1 and not parameter.grad.extent
        )
        if stats is not None and stats.extent and whole:
            # Use the full gradient, after the reduction over ranks, instead of the local one.
            stats = parameter.grad
        for sums in (root, *(found.setdefault(each, Sums()) for each in _path_prefixes(path))):
            sums.parameters += elements
            sums.trainable += elements if parameter.requires_grad else 0
            if stats is not None:
                sums.gradient = math.hypot(sums.gradient or 0.0, stats.norm)
                sums.partial += bool(stats.extent)
                if parameter.norm is not None:
                    sums.weights = math.hypot(sums.weights or 0.0, parameter.norm)
    for module in _in_checkpoints(graph):
        for path in _path_prefixes(module):
            if path in found:  # FLOPs inside the checkpoint are unknown
                found[path].unknown = found[path].unknown or 1
    for each in graph.collectives:
        for sums in (
            root,
            *(found.setdefault(path, Sums()) for path in _path_prefixes(each.module)),
        ):
            sums.sent = (sums.sent or 0) + each.nbytes
    found[""].last = next((graph.nodes[node] for node, _ in graph.outputs), None)
    _add_recorded(graph, found, root)
    return found, root


def _add_recorded(graph: Graph, found: dict[str, Sums], root: Sums) -> None:
    """Add the values in `graph.modules` to `found` and `root`.

    Values that are summed are added to the outer modules as well.
    """
    for row in graph.modules:
        own = found.get(row.path, Sums()) if row.path else root
        around = [root, *(found[path] for path in _path_prefixes(row.path) if path in found)]
        for name, column in columns_of(ModuleRow).items():
            value = getattr(row, name)
            if is_recorded(value):
                for sums in around if column.summed else (own,):
                    before = sums.recorded.get(name)
                    sums.recorded[name] = value if before is None else before + value


def _in_checkpoints(graph: Graph) -> set[str]:
    """Return the modules of the nodes whose results a reentrant checkpoint reads.

    The operations inside the checkpoint have no nodes.
    """
    before = {cut.before for cut in graph.cuts if cut.how == "checkpoint"} - {None}
    return {node.module for node in graph.nodes if node.id in before}


def _parameters(graph: Graph) -> Iterator[tuple[Parameter, str]]:
    """Yield (parameter, path of its module) for all parameters.

    If no parameters were recorded, yield those that have a node.
    """
    if graph.parameters:
        for parameter in graph.parameters:
            yield parameter, parameter.name.rpartition(".")[0]
        return
    for node in graph.nodes:
        if node.leaf == "parameter" and node.outputs and node.outputs[0] is not None:
            yield Parameter(node.label, node.outputs[0], True, node.id), node.module


def _output_depths(graph: Graph) -> list[int]:
    """Return, for each node, the depth of the outermost module that returns the node's output.

    This is the depth of the innermost module that contains the node and all its users, plus one. It
    is 0 if the model itself returns the output.
    """
    paths = [node.module.split(".") if node.module else [] for node in graph.nodes]
    inside = [bool(node.module or node.module_class) for node in graph.nodes]
    deepest = [len(path) + 1 for path in paths]
    for source, target in [(edge.source, edge.target) for edge in graph.edges]:
        shared = 0 if inside[target] else -1
        for a, b in zip(paths[source], paths[target], strict=False):
            if a != b:
                break
            shared += 1
        deepest[source] = min(deepest[source], shared + 1)
    for node, _ in graph.outputs:
        deepest[node] = 0
    return deepest


def _path_prefixes(path: str) -> Iterator[str]:
    """Yield all prefixes of a path, the shortest first: "", "encoder", "encoder.0"."""
    yield ""
    parts = path.split(".") if path else []
    for depth in range(1, len(parts) + 1):
        yield ".".join(parts[:depth])


def in_order(found: dict[str, Sums]) -> Iterable[str]:
    """Return the paths of modules in the order in which forward called them, parents first."""
    first = {path: (sums.first, i) for i, (path, sums) in enumerate(found.items())}
    return sorted(found, key=lambda path: [first[each] for each in _path_prefixes(path)])


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
