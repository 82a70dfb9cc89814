"""Check that two modules compute the same outputs and gradients, node by node.

Both modules run forward and backward, on the same inputs and with the same random numbers. Then the
values of corresponding nodes and the gradients that reached them are compared. No `.grad`, buffer
or random state is changed. All values are kept until the end, which takes about twice the memory of
a training step for each module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..devices.moving import to_device
from ..graph import Graph, Node
from ..graph.immutable import NamedTuple, immutable, mutable
from ..graph.text import print_text, printable
from ..internals.tensors.pytree import flatten
from ..tracing.names import caller_names
from ..tracing.nodes import read_nodes
from ..tracing.tracer import collect_nodes, roots


class NodeDifference(NamedTuple):
    """A difference between two modules at one node of the first module's graph.

    >>> import torch
    >>> from graphviz_torch.compare import compare_models
    >>> model = torch.nn.Linear(2, 1)
    >>> other = torch.nn.Linear(2, 1)
    >>> _ = other.load_state_dict({"weight": model.weight + 1, "bias": model.bias})
    >>> print(compare_models(model, other, torch.ones(4, 2), tolerance=1e-4).first)
    node 1, weight: its value differs by up to 1
    """

    node: int
    what: Literal["value", "gradient", "operation"]
    largest: float  # largest absolute difference of an element; inf if shapes or operations differ
    text: str

    def __str__(self) -> str:
        return self.text


@immutable
class Verification:
    """The result of `compare_models`: true if outputs, gradients and the values at all nodes agree.

    >>> import torch
    >>> from graphviz_torch.compare import compare_models
    >>> model, restored = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> _ = restored.load_state_dict(model.state_dict())
    >>> bool(compare_models(model, restored, torch.ones(4, 2)))
    True
    """

    graph: Graph  # graph of the first module
    outputs: float  # largest absolute difference of outputs
    gradients: tuple[tuple[str, float], ...]  # (parameter, largest absolute difference)
    differences: tuple[NodeDifference, ...]  # in the order in which they were computed

    @property
    def first(self) -> NodeDifference | None:
        """The difference at the first node that differs; None if there is none."""
        return self.differences[0] if self.differences else None

    def __bool__(self) -> bool:
        return not (self.outputs or self.gradients or self.differences)

    _repr_pretty_ = print_text

    def __str__(self) -> str:
        if self:
            return f"same output and same gradients, at all {len(self.graph.nodes)} nodes"
        lines = [f"outputs differ by up to {self.outputs:.3g}"] if self.outputs else []
        lines += [f"gradient of {name} differs by up to {d:.3g}" for name, d in self.gradients]
        if self.first is not None:
            lines.append(f"first at {self.first}")
        return "\n".join(map(printable, lines))


def compare_models(
    model: torch.nn.Module,
    restored: torch.nn.Module,
    inputs: Any,
    *,
    tolerance: float = 0.0,
) -> Verification:
    """Check that two modules compute the same outputs and the same gradients.

    Args:
        model, restored: the modules, whose graphs are compared node by node.
        inputs: a tensor, a tuple of arguments, or a dict of keyword arguments. They are moved to
            the device of each module's parameters.
        tolerance: largest difference to accept, relative to the largest value of the node, or to
            the largest gradient. 0 requires equal bits, as after saving and loading on one device.
            Between two kinds of devices, 1e-4 is usual.

    Raises:
        ValueError: if no output requires grad.

    >>> import torch
    >>> model, restored = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> _ = restored.load_state_dict(model.state_dict())
    >>> bool(compare_models(model, restored, torch.ones(4, 2)))
    True
    """
    first = _run(model, inputs)
    second = _run(restored, inputs)
    differences = list(_differences(first, second, tolerance))
    outputs = max(
        (
            _distance(a, b, tolerance * _largest([a]))
            for a, b in zip(first.outputs, second.outputs, strict=False)
        ),
        default=0.0,
    )
    if len(first.outputs) != len(second.outputs):
        outputs = math.inf
    allowed = tolerance * _largest(first.gradients.values())
    gradients = [
        (name, _distance(gradient, second.gradients.get(name), allowed))
        for name, gradient in first.gradients.items()
    ]
    return Verification(
        first.graph, outputs, tuple(pair for pair in gradients if pair[1]), tuple(differences)
    )


@mutable(slots=False)
class _ModuleRun:
    graph: Graph
    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    values: dict[int, torch.Tensor]  # node id -> value that the node computed
    arriving: dict[int, tuple[torch.Tensor | None, ...]]  # node id -> gradients that reached it


def _run(model: torch.nn.Module, inputs: Any) -> _ModuleRun:
    place = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    given = to_device(inputs, place)
    with _restored_buffers(model), torch.random.fork_rng():
        torch.manual_seed(0)  # dropout has to drop the same elements in both modules
        with _Values() as values, torch.enable_grad():
            if isinstance(given, Mapping):
                out = model(**given)
            else:
                out = model(*given) if isinstance(given, tuple) else model(given)
        outputs = [tensor for _, tensor in flatten(out)]
        ends = roots(out)
        fns, edges = collect_nodes([fn for fn, _ in ends])
        graph = read_nodes(fns, edges, ends, caller_names(model)).graph()
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        arriving: dict[int, tuple[torch.Tensor | None, ...]] = {}
        hooks = [
            fn.register_prehook(partial(arriving.__setitem__, node)) for node, fn in enumerate(fns)
        ]
        try:
            gradients = torch.autograd.grad(
                [tensor for tensor in outputs if tensor.requires_grad],
                list(named.values()),
                [_ramp(tensor) for tensor in outputs if tensor.requires_grad],
                allow_unused=True,
            )
        finally:
            for hook in hooks:
                hook.remove()
    by_node = {}
    for node, fn in enumerate(fns):
        if hasattr(fn, "variable"):
            by_node[node] = fn.variable.detach()
        elif hasattr(fn, "_sequence_nr") and fn._sequence_nr() in values.found:
            by_node[node] = values.found[fn._sequence_nr()]
    return _ModuleRun(graph, outputs, dict(zip(named, gradients, strict=True)), by_node, arriving)


class _Values(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that keeps the value of each node, by the node's sequence number."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # In torch 2.11 to 2.14, autograd creates the node just before it dispatches the operator,
        # so the node has the last sequence number. No public function returns that number.
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        out = func(*args, **(kwargs or {}))
        if number not in self.found:
            first = next((tensor for _, tensor in flatten(out)), None) if out is not None else None
            if first is not None:
                self.found[number] = first.detach().clone()
        return out


@contextmanager
def _restored_buffers(model: torch.nn.Module) -> Iterator[None]:
    """Restore the model's buffers, such as running means, at the end of the `with` block."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _ramp(tensor: torch.Tensor) -> torch.Tensor:
    # The gradients of the outputs are not all ones, because the gradient of a softmax would be
    # zero.
    ramp = torch.arange(tensor.numel(), dtype=torch.float64).mul_(0.7).cos_()
    return ramp.reshape(tensor.shape).to(tensor.device, tensor.dtype)


def _differences(
    first: _ModuleRun, second: _ModuleRun, tolerance: float
) -> Iterator[NodeDifference]:
    nodes, others = first.graph.nodes, second.graph.nodes
    for node, other in zip(nodes, others, strict=False):
        shapes = [[meta and meta.shape for meta in n.outputs] for n in (node, other)]
        if node.name != other.name or shapes[0] != shapes[1]:
            text = f"{_node_text(node)}: the other module computes {other.name} {shapes[1]} there"
            yield NodeDifference(node.id, "operation", math.inf, text)
            return
    if len(nodes) != len(others):
        last = min(len(nodes), len(others)) - 1
        counts = f"one module has {len(nodes)} nodes, the other {len(others)}"
        text = f"{_node_text(nodes[last])}: {counts}"
        yield NodeDifference(last, "operation", math.inf, text)
        return
    for node in nodes:
        value = first.values.get(node.id)
        largest = _distance(value, second.values.get(node.id), tolerance * _largest([value]))
        if largest:
            text = f"{_node_text(node)}: its value differs by up to {largest:.3g}"
            yield NodeDifference(node.id, "value", largest, text)
    # The tolerance is relative to the largest gradient, because gradients that should be zero
    # consist of rounding errors.
    allowed = tolerance * _largest(g for gradients in first.arriving.values() for g in gradients)
    for node in reversed(nodes):
        pairs = zip(first.arriving.get(node.id, ()), second.arriving.get(node.id, ()), strict=False)
        largest = max((_distance(a, b, allowed) for a, b in pairs), default=0.0)
        if largest:
            text = (
                f"{_node_text(node)}: the gradient that reaches it differs by up to {largest:.3g}"
            )
            yield NodeDifference(node.id, "gradient", largest, text)


def _node_text(node: Node) -> str:
    return f"node {node.id}, {node.label or node.title}"


def _distance(a: torch.Tensor | None, b: torch.Tensor | None, allowed: float) -> float:
    """Return the largest absolute difference between two tensors.

    Return 0 if the difference is at most `allowed`, and inf if the shapes differ.
    """
    if a is None or b is None:
        return 0.0 if a is b else math.inf
    if a.shape != b.shape:
        return math.inf
    kind = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    a, b = (tensor.detach().cpu().to(kind) for tensor in (a, b))
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), torch.zeros_like(a), a - b).abs()
    largest = float(apart.nan_to_num(math.inf).max()) if a.numel() else 0.0
    return 0.0 if largest <= allowed else largest


def _largest(tensors: Iterable[torch.Tensor | None]) -> float:
    """Return the largest finite absolute value in all tensors."""
    finite = (t.detach().abs().nan_to_num(0, 0, 0) for t in tensors if t is not None and t.numel())
    return max((float(t.max()) for t in finite), default=0.0)
