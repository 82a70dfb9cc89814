"""Convert a Graph to the protobufs of TensorBoard's Graphs tab: `GraphDef` and `RunMetadata`.

The Graphs tab shows a compute time and a memory size for each node. The compute time is the
measured duration of the node's backward. The memory is the size of the tensors that the node saves
for backward; in the scope "backward", it is the size of the gradients that reached the node.
Nothing is estimated. A node without measurements gets only the shapes of its outputs, so that it is
drawn white instead of hatched. A scope without measurements is always hatched.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache

from tensorboard.compat.proto import (  # type: ignore[import-untyped]
    attr_value_pb2,
    config_pb2,
    graph_pb2,
    node_def_pb2,
    step_stats_pb2,
    types_pb2,
)

from ..graph import Edge, GradientStats, Graph, ModuleRow, Node, TensorMeta, Transfer
from ..graph.collective import by_node
from ..graph.nodes import columns_except, columns_in
from ..graph.text import printable, shorten
from ..render.collectives import describe_collectives
from .names import Names, device, names, operation

# The Graphs tab merges consecutive entries of `input` that name the same node, so that `x * x`
# would have only one edge. This entry is inserted between two such entries to prevent this. The tab
# skips it, because no node has this name.
SEPARATOR_INPUT = "^|"
_TYPES = {
    "float32": types_pb2.DT_FLOAT,
    "float64": types_pb2.DT_DOUBLE,
    "float16": types_pb2.DT_HALF,
    "bfloat16": types_pb2.DT_BFLOAT16,
    "complex64": types_pb2.DT_COMPLEX64,
    "complex128": types_pb2.DT_COMPLEX128,
    "float8_e4m3fn": types_pb2.DT_FLOAT8_E4M3FN,
    "float8_e5m2": types_pb2.DT_FLOAT8_E5M2,
}
_LEAVES = {"parameter": "Parameter", "buffer": "Buffer", "tensor": "Input", "": "Leaf"}
# Fields of `Node` that are written as text in the same way; `_describe` writes the excluded fields.
_BESIDE = columns_except(Node, "scope", "where", "note", "saved", "seconds")
_MAX_ATTRIBUTE_LENGTH = 1000  # in characters, because the panel of the Graphs tab is narrow


def graph_def(graph: Graph, *, backward: bool = False) -> tuple[graph_pb2.GraphDef, Names]:
    """Return the graph as a `GraphDef`, and the names of the nodes in it.

    Args:
        graph: the graph to convert.
        backward: True to add the scope "backward", with a node for each gradient computation.
            Dashed edges into the scope show where saved tensors are used, and each gradient
            accumulator has an edge to its leaf.

    Raises:
        ValueError: if the graph has no nodes.
    """
    if not graph.nodes:
        raise ValueError("the graph has no nodes: TensorBoard cannot open an empty graph.")
    paths = names(graph)
    built = graph_pb2.GraphDef()
    built.versions.producer = 22
    inputs = graph.inputs()
    transfers: dict[int, list[Transfer]] = {}
    for transfer in graph.transfers:
        if transfer.node is not None:
            transfers.setdefault(transfer.node, []).append(transfer)
    sent = {node: describe_collectives(some) for node, some in by_node(graph.collectives).items()}
    modules = {row.path: row for row in graph.modules}
    columns = columns_in(ModuleRow, graph.modules).items()
    marked = {node for node, _ in graph.outputs}
    # Cached entries without a name. They are copied for nodes that differ only in their names.
    alike: dict[Hashable, node_def_pb2.NodeDef] = {}
    for node in graph.nodes:
        moved = transfers.get(node.id, [])
        role = "transfer" if moved else "output" if node.id in marked else "forward"
        if node.id in sent and not moved:
            role = "collective"
        key = node.name, node.operation, node.leaf, node.outputs, node.note, role
        common = alike.get(key)
        if common is None:
            common = alike[key] = _common(node, role)
        entry = built.node.add()
        entry.CopyFrom(common)
        entry.name = paths.nodes[node.id]
        _connect(entry, [f"{paths.nodes[e.source]}:{e.output_nr}" for e in inputs[node.id]])
        _describe(entry, node, moved)
        _text(entry, "between ranks", "; ".join(sent.get(node.id, ())))
        if row := modules.get(node.module):
            for name, column in columns:
                _text(entry, f"module's {column.title}", column.text(getattr(row, name)))
    for (source, output_nr), path in zip(graph.outputs, paths.outputs, strict=True):
        node = graph.nodes[source]
        meta = node.outputs[output_nr] if output_nr < len(node.outputs) else None
        entry = built.node.add(name=path, op="Output", device=device(meta.device if meta else ""))
        _connect(entry, [f"{paths.nodes[source]}:{output_nr}"])
        _tensors(entry, [meta])
        _role(entry, "output")
    if backward:
        _add_backward(built, graph, paths, inputs)
    return built, paths


def _common(node: Node, role: str) -> node_def_pb2.NodeDef:
    """Return the `NodeDef` of a node, without the fields that depend on its name and inputs.

    Args:
        node: the node.
        role: "forward", "output", "transfer" or "collective", by which the tab may color nodes.
    """
    entry = node_def_pb2.NodeDef(device=device(node.device))
    leaf = node.title == "AccumulateGrad"
    entry.op = _LEAVES[node.leaf] if leaf else operation(node.title)
    _tensors(entry, node.outputs)
    _role(entry, entry.op.lower() if leaf else role)
    _text(entry, "autograd", node.name)
    _text(entry, "note", node.note)
    return entry


def run_metadata(
    graph: Graph, built: graph_pb2.GraphDef, paths: Names, *, backward: bool = False
) -> config_pb2.RunMetadata:
    """Return the `RunMetadata`: `built` with the measured times and memory sizes of its nodes.

    TensorBoard's Graphs tab computes the time of a scope as the last end minus the first start in
    the scope. Therefore the nodes of a scope get consecutive times without gaps, so that the time
    of a scope is the sum of the times of its nodes. Times are whole microseconds, at least 1.

    Args:
        graph: the graph.
        built: the graph as a `GraphDef`.
        paths: the names of the nodes in `built`.
        backward: True if `built` has the scope "backward".
    """
    metadata = config_pb2.RunMetadata()
    metadata.function_graphs.add().pre_optimization_graph.CopyFrom(built)
    times: dict[str, float] = {}
    sizes: dict[str, int] = {}
    for node in graph.nodes:
        path = paths.nodes[node.id]
        mirror = f"{paths.backward}/{path}"
        if node.seconds is not None:
            times[mirror if backward else path] = node.seconds
        if node.saved_bytes:
            sizes[path] = node.saved_bytes
        if backward:
            sizes[mirror] = _gradient_bytes(node)
    if not times and not any(sizes.values()):
        return metadata
    mark = paths.outputs[0] if paths.outputs else paths.nodes[-1]
    devices = {}
    # Serialized output shapes -> cached entry with these shapes.
    alike: dict[bytes, step_stats_pb2.NodeExecStats] = {}
    now = 1  # start of the next node; the Graphs tab does not color a node that starts at 0
    entries = {entry.name: entry for entry in built.node}
    for name in sorted(entries, key=lambda name: name.split("/")):
        entry = entries[name]
        device = entry.device
        if not device:
            continue
        if device not in devices:
            devices[device] = metadata.step_stats.dev_stats.add(device=device)
        shapes = entry.attr["_output_shapes"].list
        key = shapes.SerializeToString()
        if key not in alike:
            alike[key] = _outputs(shapes)
        stats = devices[device].node_stats.add()
        stats.CopyFrom(alike[key])
        stats.node_name = name
        if name in times:
            stats.all_start_micros = now
            took = max(1, round(times[name] * 1e6))
            stats.all_end_rel_micros = took
            now += took
        elif not times and name == mark:
            # If no node had a time, the Graphs tab would paint every node black. This time does not
            # change the scale of the tab, because its start and end are the same number in
            # JavaScript.
            stats.all_start_micros = 2**53
            stats.all_end_rel_micros = 1
        if sizes.get(name):
            stats.memory.add(allocator_name="recorded", total_bytes=sizes[name])
    return metadata


def _outputs(shapes: attr_value_pb2.AttrValue.ListValue) -> step_stats_pb2.NodeExecStats:
    stats = step_stats_pb2.NodeExecStats()
    for slot, shape in enumerate(shapes.shape):
        if not shape.unknown_rank:
            stats.output.add(slot=slot).tensor_description.shape.CopyFrom(shape)
    return stats


def _gradient_bytes(node: Node) -> int:
    tensors = [stats.tensor for stats in node.grad_outputs if stats is not None]
    return sum(tensor.nbytes or 0 for tensor in tensors if tensor is not None)


def _add_backward(
    built: graph_pb2.GraphDef, graph: Graph, paths: Names, inputs: list[list[Edge]]
) -> None:
    """Add the scope "backward": a node for each `grad_fn`, with edges for the gradients."""
    users = graph.users()
    ends: dict[int, list[str]] = {}
    for (source, _), path in zip(graph.outputs, paths.outputs, strict=True):
        ends.setdefault(source, []).append(path)
    for node in graph.nodes:
        path = paths.nodes[node.id]
        entry = built.node.add(name=f"{paths.backward}/{path}", device=device(node.device))
        leaf = node.title == "AccumulateGrad"
        # A gradient accumulator adds to the leaf's `grad`. The Graphs tab draws input 0 of an
        # AssignAdd as changed in place.
        entry.op = "AssignAdd" if leaf else operation(node.name)
        sources = [path] if leaf else [f"^{path}"] if node.saved else []
        sources += [f"^{end}" for end in ends.get(node.id, [])]
        for edge in users[node.id]:
            slot = inputs[edge.target].index(edge)
            sources.append(f"{paths.backward}/{paths.nodes[edge.target]}:{slot}")
        _connect(entry, sources)
        if leaf:
            _tensors(entry, node.outputs)
        else:
            _tensors(entry, [_output(graph.nodes[e.source], e.output_nr) for e in inputs[node.id]])
        _role(entry, "accumulate" if leaf else "backward")
        _text(entry, "gradient", _gradients(node.grad_outputs))
        if node.seconds is not None:
            _text(entry, "backward", _backward_text(node))


def _output(node: Node, output_nr: int) -> TensorMeta | None:
    return node.outputs[output_nr] if output_nr < len(node.outputs) else None


def _connect(entry: node_def_pb2.NodeDef, sources: Iterable[str]) -> None:
    last = None
    for source in sources:
        if source.startswith("^"):
            name = source[1:]
        else:
            name, _, slot = source.rpartition(":")
            if slot == "0":
                source = name
        if name == last:
            entry.input.append(SEPARATOR_INPUT)
        entry.input.append(source)
        last = name


def _tensors(entry: node_def_pb2.NodeDef, outputs: Iterable[TensorMeta | None]) -> None:
    shapes = entry.attr["_output_shapes"].list
    known = []
    for meta in outputs:
        shape = shapes.shape.add()
        if meta is None:
            shape.unknown_rank = True
            continue
        known.append(meta)
        for size in meta.shape:
            shape.dim.add(size=size)
    if known:
        # The panel of the Graphs tab shows this text, but not `_output_shapes`, which is for edges.
        _text(entry, "tensor", "; ".join(map(str, known)))
        dtype = _TYPES.get(known[0].dtype)
        if dtype is not None:
            entry.attr["T"].type = dtype


def _role(entry: node_def_pb2.NodeDef, role: str) -> None:
    """Set the category by which the Graphs tab colors nodes if "XLA cluster" is selected.

    Autograd graphs have no XLA clusters, so this coloring is free.
    """
    entry.attr["_XlaCluster"].s = role.encode()
    entry.attr["role"].s = role.encode()


def _describe(entry: node_def_pb2.NodeDef, node: Node, transfers: list[Transfer]) -> None:
    _text(entry, "name", node.label)
    _text(entry, "module", node.scope or node.module)
    _text(entry, "line", node.where)
    if node.saved:
        entry.attr["saved_bytes"].i = node.saved_bytes
        _text(
            entry, "saved", "; ".join([_saved_text(s.name or s.kind, s.tensor) for s in node.saved])
        )
    _text(entry, "gradient", _gradients(node.grad_outputs))
    _text(entry, "backward", _backward_text(node))
    if transfers:
        _text(entry, "transfer", "; ".join(map(_transfer_text, transfers)))
    for name, column in _BESIDE:
        _text(entry, column.title, column.text(getattr(node, name)))


@lru_cache(1024)
def _saved_text(name: str, tensor: TensorMeta) -> str:
    return f"{name} {tensor}"


def _gradients(stats: Iterable[GradientStats | None]) -> str:
    return "; ".join([_gradient(entry) for entry in stats if entry is not None])


def _gradient(stats: GradientStats) -> str:
    text = f"norm {stats.norm:.6g}, max {stats.max_abs:.6g}, mean {stats.mean:.6g}"
    text += f", {stats.zero_fraction:.0%} zero"
    if stats.nan or stats.inf:
        text += f", {stats.nan} NaN, {stats.inf} Inf"
    if stats.values is not None:
        values = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in stats.values]
        text += f", [{', '.join(values)}]"
    return text + (f", of the {stats.extent}" if stats.extent else "")


def _backward_text(node: Node) -> str:
    parts = []
    if node.order is not None:
        parts.append(f"ran as number {node.order + 1}")
    if node.seconds is not None:
        parts.append(f"took {node.seconds * 1e6:.1f} us")
    return ", ".join(parts)


def _transfer_text(transfer: Transfer) -> str:
    text = f"{transfer.source} -> {transfer.target} in {transfer.phase}, {transfer.nbytes} bytes"
    if transfer.pinned is not None:
        text += ", pinned" if transfer.pinned else ", pageable"
    return text


def _text(entry: node_def_pb2.NodeDef, key: str, text: str) -> None:
    if not text:
        return
    text = shorten(printable(text, lines=True), _MAX_ATTRIBUTE_LENGTH, "...")
    if text.isascii():
        entry.attr[key].s = text.encode()
    else:
        # The Graphs tab would show non-ASCII bytes of the field `s` as octal numbers. The field
        # `placeholder` has Unicode text.
        entry.attr[key].placeholder = text
