"""Reading an autograd graph: live `grad_fn`s in topological order, and the `Graph` made of them.

Nothing is re-run, no saved tensor is unpacked, no hook is left, and no tensor or node is held once
`trace` has returned.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from .graph import Edge, Graph, LeafKind, Node, TensorMeta
from .names import Names, caller_names

# Any: torch gives nodes of C++ and of Python classes with no common public type.
GradFn = Any

# What to call a device that is not what it seems: `simulate_accelerator` enters its own here.
DEVICE_LABELS: dict[torch.device, str] = {}


def flatten(outputs: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a nesting with the path to each: `{"loss": t}` -> `[("loss", t)]`.

    Lists, tuples, dicts and dataclasses are entered, in order; anything else that is no tensor is
    passed over inside a nesting.
    """
    found: list[tuple[str, torch.Tensor]] = []
    stack: list[tuple[str, Any]] = [("", outputs)]
    entered: set[int] = set()  # a nesting that contains itself ends here
    while stack:
        path, value = stack.pop()
        if isinstance(value, torch.Tensor):
            found.append((path, value))
            continue
        if id(value) in entered:
            continue
        if isinstance(value, dict):
            parts = [(str(key), item) for key, item in value.items()]
        elif is_dataclass(value) and not isinstance(value, type):
            parts = [(f.name, getattr(value, f.name)) for f in fields(value)]
        elif isinstance(value, (list, tuple)):
            names = getattr(value, "_fields", None) or range(len(value))
            parts = [(str(name), item) for name, item in zip(names, value, strict=True)]
        else:
            continue
        entered.add(id(value))
        stack.extend((f"{path}.{name}" if path else name, item) for name, item in reversed(parts))
    return found


def walk(outputs: Any) -> list[GradFn]:
    """The live nodes behind `outputs`, in the order of `trace(outputs).nodes`: inputs first.

    Hold the list only as long as you need it: it keeps the graph, and what the graph saved, alive.

    Raises:
        TypeError, ValueError: as `trace`.
    """
    return _walk([root for root, _ in roots(outputs)])


def roots(outputs: Any) -> list[tuple[GradFn, int]]:
    """The live node and `output_nr` behind each tensor of `outputs`, in the order given."""
    tensors = flatten(outputs)
    if not tensors:
        if isinstance(outputs, (list, tuple, dict)) or is_dataclass(outputs):
            raise ValueError(
                f"outputs holds no tensor: {_shorten(outputs)}. Pass what you would call backward() on."
            )
        raise TypeError(
            f"outputs is a {type(outputs).__name__}, not a tensor: {_shorten(outputs)}. "
            "Pass a tensor, or a list, tuple, dict or dataclass of tensors."
        )
    found = []
    for path, tensor in tensors:
        edge = _gradient_edge(tensor)
        if edge is None:
            if len(tensors) > 1:
                continue
            raise ValueError(
                f"outputs{f'[{path}]' if path else ''} ({tensor_meta(tensor)}) has no autograd graph: "
                "requires_grad is False. Was it computed under torch.no_grad(), or detached?"
            )
        found.append(edge)
    if not found:
        raise ValueError(
            f"none of the {len(tensors)} tensors in outputs has an autograd graph: requires_grad is "
            "False for each. Were they computed under torch.no_grad(), or detached?"
        )
    return found


def trace(outputs: Any, *, names: Names = None) -> Graph:
    """The autograd graph behind `outputs`, read without running anything.

    Args:
        outputs: a tensor, or any nesting of lists, tuples, dicts and dataclasses of tensors.
        names: what to call the tensors: a dict of tensors by name, an `nn.Module` (its parameters'
            names), `{}` for no names; None reads the caller's variables.

    Returns:
        A Graph with a node for every autograd node, in topological order, inputs before users.

    Raises:
        TypeError: if `outputs` is no tensor and no nesting.
        ValueError: if no tensor in it has an autograd graph.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = (x * 2).sum()
    >>> [(node.name, node.label) for node in trace(y).nodes]
    [('AccumulateGrad', 'x'), ('MulBackward0', ''), ('SumBackward0', 'y')]
    """
    ends = roots(outputs)
    fns = _walk([fn for fn, _ in ends])
    return read(fns, ends, caller_names(names, outputs))


def read(
    fns: list[GradFn], ends: list[tuple[GradFn, int]], named: list[tuple[str, torch.Tensor]]
) -> Graph:
    """The Graph of live nodes that `walk` put in order. `named`: labels, the first of a node wins."""
    ids = {fn: i for i, fn in enumerate(fns)}
    labels = _labels(ids, named)
    kinds = _leaf_kinds(fns, named)
    nodes = []
    edges = []
    for i, fn in enumerate(fns):
        name = type(fn).__name__
        nodes.append(
            Node(i, name, _outputs(fn), labels.get(i, ""), operation(name), kinds.get(i, ""))
        )
        for input_nr, (source, output_nr) in enumerate(fn.next_functions):
            if source is not None:
                edges.append(Edge(ids[source], i, output_nr, input_nr))
    return Graph(tuple(nodes), tuple(edges), tuple((ids[fn], nr) for fn, nr in ends))


def operation(name: str) -> str:
    """The forward's name for an autograd node's: "AddmmBackward0" -> "addmm"; "" for a leaf."""
    if name == "AccumulateGrad":
        return ""
    stem = re.sub(r"Backward\d*$", "", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def device_label(device: torch.device) -> str:
    """A device's name in a graph: "cpu", "cuda:0"; "sim:0" for a simulated one."""
    return DEVICE_LABELS.get(device) or str(device)


def tensor_meta(tensor: torch.Tensor) -> TensorMeta:
    """Shape, dtype and device of a live tensor, as a plain value."""
    return TensorMeta(tuple(tensor.shape), str(tensor.dtype)[6:], device_label(tensor.device))


def _walk(starts: list[GradFn]) -> list[GradFn]:
    # Explicit stack: a recursive walk dies at about 1,000 nodes.
    order: list[GradFn] = []
    seen = set()
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(start.next_functions))]
        while stack:
            fn, sources = stack[-1]
            for source, _ in sources:
                if source is not None and source not in seen:
                    seen.add(source)
                    stack.append((source, iter(source.next_functions)))
                    break
            else:
                order.append(fn)
                stack.pop()
    return order


def _gradient_edge(tensor: torch.Tensor) -> tuple[GradFn, int] | None:
    if not tensor.requires_grad:
        return None
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _outputs(fn: GradFn) -> tuple[TensorMeta | None, ...]:
    return tuple(
        TensorMeta(tuple(meta.shape), str(meta.dtype)[6:], device_label(meta.device))
        for meta in fn._input_metadata
    )


def _labels(ids: dict[GradFn, int], named: list[tuple[str, torch.Tensor]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for name, tensor in named:
        edge = _gradient_edge(tensor)
        if edge is not None and edge[0] in ids:
            found.setdefault(ids[edge[0]], name)
    return found


def _leaf_kinds(fns: list[GradFn], named: list[tuple[str, torch.Tensor]]) -> dict[int, LeafKind]:
    kinds: dict[int, LeafKind] = {}
    for i, fn in enumerate(fns):
        if type(fn).__name__ == "AccumulateGrad":
            kinds[i] = "parameter" if isinstance(fn.variable, torch.nn.Parameter) else "tensor"
    return kinds


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
