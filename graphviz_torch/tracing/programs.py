"""Convert an exported program or a graph of `torch.fx`, without running it, to a `Graph`.

Each fx node becomes one node, with the shape, source line and module from the fx node's metadata. A
`getitem` that picks one of several results becomes an output of the node that created them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.fx.node import map_arg

from ..graph import Edge, Graph, Node, TensorMeta
from ..graph.nodes import LeafKind
from ..graph.text import called_at, shorten
from ..internals.tensors.metadata import tensor_meta
from .region_reader import modules_of, origin

_MAX_ARGUMENT_LENGTH = 100  # longer texts of arguments are shortened

Program = ExportedProgram | GraphModule | FxGraph
Leaf = tuple[LeafKind, str]  # kind of an input, name of the input in the model
Shorten = Callable[[set[str]], Mapping[str, str]]  # function that returns a short name per file


def program_graph(program: Program, shorten: Shorten) -> Graph:
    """Return the graph of a program.

    Args:
        program: the result of `torch.export.export`, or a graph of `torch.fx` as created by
            tracers, Dynamo and AOTAutograd.
        shorten: returns a short name for each of the given source files.

    >>> def square(x):
    ...     return (x * x).sum()
    >>> graph = program_graph(torch.fx.symbolic_trace(square), lambda files: {})
    >>> [(node.label, node.operation) for node in graph.nodes]
    [('x', ''), ('', 'mul'), ('', 'sum')]
    """
    fx = program if isinstance(program, FxGraph) else program.graph
    leaves = dict(_leaves(program, fx))
    ends: dict[FxNode, tuple[int, int]] = {}  # (node id, output_nr) of each result
    nodes: list[Node] = []
    edges: list[Edge] = []
    outputs: list[tuple[int, int]] = []
    origins = {op: origin(op.meta) for op in fx.nodes}
    places = {at for one in origins.values() for at in (one.place, one.library) if at}
    short = shorten({file for file, _ in places})
    kinds = {path: kind for op in fx.nodes for _, path, kind in modules_of(op.meta)}
    for op in fx.nodes:
        if op.op == "output":
            outputs += [ends[one] for one in _operands(op)]
        elif (picked := _picked_index(op)) is not None:
            ends[op] = ends[op.args[0]][0], picked
        else:
            place, library = (
                "" if at is None else f"{short.get(at[0], at[0])}:{at[1]}"
                for at in (origins[op].place, origins[op].library)
            )
            node = _node(len(nodes), op, leaves, program)
            around = modules_of(op.meta)
            module = node.module or (around[-1][1] if around else "")
            nodes.append(
                node._replace(
                    where=called_at(library, place) if library and place else place or library,
                    module=module,
                    scope=module,
                    module_class=_classes_along(module, kinds),
                )
            )
            ends[op] = node.id, 0
            for input_nr, operand in enumerate(_operands(op)):
                source, output_nr = ends[operand]
                edges.append(Edge(source, node.id, output_nr, input_nr))
    return Graph(tuple(nodes), tuple(edges), tuple(outputs))


def _node(number: int, op: FxNode, leaves: Mapping[str, Leaf], program: Program) -> Node:
    kind, label = leaves.get(op.name, ("", ""))
    if kind:
        module = label.rpartition(".")[0] if kind != "tensor" else ""
        return Node(number, op.op, _outputs(op), label=label, leaf=kind, module=module)
    target: Any = op.target
    if op.op == "call_module":
        called = program.get_submodule(target) if isinstance(program, GraphModule) else None
        name = "" if called is None else type(called).__name__
        return Node(number, name or op.op, _outputs(op), operation=name or target, module=target)
    packet = getattr(target, "overloadpacket", target)
    operation = target if isinstance(target, str) else getattr(packet, "__name__", str(packet))
    name = str(target) if packet is not target else f"{op.op} {operation}"
    return Node(number, name, _outputs(op), operation=operation, attributes=_arguments(op))


def _leaves(program: Program, fx: FxGraph) -> Iterator[tuple[str, Leaf]]:
    """Yield for each input the name of its fx node, and its kind and name in the model."""
    signature = getattr(program, "graph_signature", None)
    kinds: tuple[tuple[LeafKind, str], ...] = (
        ("parameter", "inputs_to_parameters"),
        ("buffer", "inputs_to_buffers"),
        ("tensor", "inputs_to_lifted_tensor_constants"),
    )
    named = {
        node: (kind, str(name))
        for kind, field in kinds
        for node, name in getattr(signature, field, {}).items()
    }
    for op in fx.nodes:
        if op.op == "placeholder":
            yield op.name, named.get(op.name, ("tensor", str(op.target)))
        elif op.op == "get_attr" and isinstance(program, GraphModule):
            value = operator.attrgetter(str(op.target))(program)
            if isinstance(value, torch.Tensor):  # not the graph of a branch or a loop body
                own = isinstance(value, torch.nn.Parameter)
                yield op.name, ("parameter" if own else "buffer", str(op.target))


def _operands(op: FxNode) -> list[FxNode]:
    """Return the fx nodes among an operation's arguments, in order, including duplicates."""
    found: list[FxNode] = []
    map_arg((op.args, op.kwargs), found.append)
    return found


def _picked_index(op: FxNode) -> int | None:
    """Return the index of the result that a `getitem` fx node selects; None for other nodes."""
    if op.target is not operator.getitem or not isinstance(op.args[1], int):
        return None
    source = op.args[0]
    value = _value(source) if isinstance(source, FxNode) else None
    return op.args[1] % len(value) if isinstance(value, list | tuple) and value else None


def _value(op: FxNode) -> Any:
    """Return the example result in an operation's metadata; None if there is none.

    The example result usually consists of fake tensors.
    """
    return op.meta.get("val", op.meta.get("example_value"))


def _outputs(op: FxNode) -> tuple[TensorMeta | None, ...]:
    value = _value(op)
    if (
        value is None
        and (meta := op.meta.get("tensor_meta")) is not None
        and hasattr(meta, "dtype")
    ):
        # ShapeProp stores a `tensor_meta` instead of an example result.
        value = torch.empty(meta.shape, dtype=meta.dtype, device="meta")
    if value is None:
        return ()
    several = value if isinstance(value, list | tuple) else (value,)
    return tuple(tensor_meta(v) if isinstance(v, torch.Tensor) else None for v in several)


def _arguments(op: FxNode) -> tuple[str, ...]:
    """Return the arguments that are not results of fx nodes, in the form "name=value"."""
    schema = getattr(op.target, "_schema", None)
    names = [] if schema is None else [argument.name for argument in schema.arguments]
    names += [f"argument {i}" for i in range(len(names), len(op.args))]
    given = {**dict(zip(names[: len(op.args)], op.args, strict=True)), **op.kwargs}
    found: list[FxNode] = []
    texts = []
    for name, value in given.items():
        found.clear()
        map_arg(value, found.append)
        if not found and value is not None:
            texts.append(f"{name}={shorten(str(value), _MAX_ARGUMENT_LENGTH)}")
    return tuple(texts)


def _classes_along(module: str, kinds: Mapping[str, str]) -> str:
    """Return the classes along a module path, as in `Node.module_class`."""
    parts = module.split(".")
    return "/".join(kinds.get(".".join(parts[: i + 1]), "") for i in range(len(parts)))
