"""What TensorBoard's Graphs tab would silently drop, merge or fail on, found before it is written.

Each rule mirrors one behaviour of the tab's frontend, seen in a browser on TensorBoard 2.20 and
2.21; a file that reads back equal can still lose nodes, edges or colours to any of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tensorboard.compat.proto import (  # type: ignore[import-untyped]
    config_pb2,
    graph_pb2,
    node_def_pb2,
    step_stats_pb2,
)

from .names import LIBRARY, LIMIT, REFERENCE_OPS, RESERVED, SERIES

_DEVICE = re.compile(r"/device:([^:]+:[0-9]+)$")
# "#" stands in the tab's own names too; the others break `querySelector`, or leave no colour.
_FORBIDDEN = re.compile(r"[^\w.\-()\[\],#>+~/]|~~|//|^/|/$")
_CROWDED = 2 * LIMIT  # children of a scope; the groups' LIMIT counts nodes before backward is added
_LARGEST = 2**31 - 1  # bytes of a protobuf message
_LONG_ATTRIBUTE = 4096
_SOURCE = re.compile(r"([^:]+):(?:\w+:)?(\d+)")


def check(graph: graph_pb2.GraphDef, metadata: config_pb2.RunMetadata | None = None) -> None:
    """Raises ValueError, naming each node, for what the Graphs tab would not show as it is."""
    found = list(problems(graph, metadata))
    if found:
        more = f"\n(and {len(found) - 10} more)" if len(found) > 10 else ""
        raise ValueError("TensorBoard would not show this graph:\n" + "\n".join(found[:10]) + more)


def problems(
    graph: graph_pb2.GraphDef, metadata: config_pb2.RunMetadata | None = None
) -> Iterator[str]:
    """One sentence for each node, edge or measurement that the Graphs tab would lose."""
    if not graph.node:
        yield "the graph is empty: the tab shows an error."
    nodes = {node.name: node for node in graph.node}
    if len(nodes) < len(graph.node):
        for name, count in Counter(node.name for node in graph.node).items():
            if count > 1:
                yield f"node {name!r}: {count} nodes have this name and are drawn as one."
    for node in graph.node:
        yield from _name(node.name)
        yield from _operation(node, nodes)
        yield from _inputs(node, nodes)
        yield from _attributes(node)
        if node.device and not _DEVICE.search(node.device):
            yield f"node {node.name!r}: device {node.device!r} is not like '/device:cuda:0'."
    yield from _scopes(graph)
    yield from _series(graph)
    if graph.ByteSize() > _LARGEST:
        yield f"the graph has {graph.ByteSize()} bytes; a protobuf holds at most {_LARGEST}."
    if metadata is not None:
        yield from _measurements(metadata, nodes)


def _name(name: str) -> Iterator[str]:
    if not name:
        yield "a node has no name."
        return
    first = name.partition("/")[0]
    if first in RESERVED or first.startswith(LIBRARY):
        yield f"node {name!r}: a first segment {first!r} breaks the page."
    bad = _FORBIDDEN.search(name)
    if bad:
        yield f"node {name!r}: {bad[0]!r} in a name loses its colour, its edges or its scope."


def _operation(node: node_def_pb2.NodeDef, nodes: dict[str, node_def_pb2.NodeDef]) -> Iterator[str]:
    if not node.op:
        yield f"node {node.name!r} has no operation."
    if "Const" in node.op:
        yield f"node {node.name!r}: operation {node.op!r} contains 'Const' and is swallowed."
    if node.op.endswith("Summary") and re.fullmatch(r"[a-zA-Z]+Summary", node.op):
        yield f"node {node.name!r}: operation {node.op!r} ends in 'Summary' and is swallowed."
    if node.op == "NoOp":
        yield f"node {node.name!r}: operation 'NoOp' is moved out of the graph."
    if node.op in REFERENCE_OPS and (not node.input or node.input[0] not in nodes):
        yield f"node {node.name!r}: operation {node.op!r} changes its input 0, and has none."


def _inputs(node: node_def_pb2.NodeDef, nodes: dict[str, node_def_pb2.NodeDef]) -> Iterator[str]:
    last = None
    for entry in node.input:
        name, slot = _source(entry)
        if name == last:
            yield f"node {node.name!r}: two inputs from {name!r} follow each other and are merged."
        last = name
        source = nodes.get(name)
        if source is None:
            if entry != "^|":
                yield f"node {node.name!r}: input {entry!r} names no node and is dropped."
        elif source is node:
            yield f"node {node.name!r}: an edge to itself is dropped."
        elif not entry.startswith("^"):
            shapes = source.attr["_output_shapes"].list.shape
            if shapes and slot >= len(shapes):
                yield f"node {node.name!r}: {name!r} has no shape for output {slot}."


def _source(entry: str) -> tuple[str, int]:
    name = entry.removeprefix("^")
    match = _SOURCE.fullmatch(name) if ":" in name else None
    return (match[1], int(match[2])) if match else (name, 0)


def _attributes(node: node_def_pb2.NodeDef) -> Iterator[str]:
    for key, value in node.attr.items():
        plain = value.s
        text = plain or value.placeholder.encode()
        if len(text) > _LONG_ATTRIBUTE:
            yield f"node {node.name!r}: attribute {key!r} has {len(text)} bytes, the panel stalls."
        if not plain.isascii():
            yield f"node {node.name!r}: attribute {key!r} is not ASCII and shows as octal numbers."


def _scopes(graph: graph_pb2.GraphDef) -> Iterator[str]:
    children: dict[str, set[str]] = {}
    for node in graph.node:
        parts = node.name.split("/")
        for depth in range(len(parts)):
            children.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    for scope, names in children.items():
        if len(names) > _CROWDED:
            yield f"scope {scope!r} has {len(names)} children, too many to draw or read."


def _series(graph: graph_pb2.GraphDef) -> Iterator[str]:
    families: dict[tuple[str, str, str], dict[int, str]] = {}
    for node in graph.node:
        scope, _, leaf = node.name.rpartition("/")
        match = re.fullmatch(r"(\D*)(\d+)", leaf)
        if match:
            families.setdefault((scope, match[1], node.op), {})[int(match[2])] = node.name
    for numbers in families.values():
        for first in numbers:
            if first - 1 not in numbers and all(first + i in numbers for i in range(SERIES)):
                yield f"node {numbers[first]!r} and those numbered after it are folded into one."


def _measurements(
    metadata: config_pb2.RunMetadata, nodes: dict[str, node_def_pb2.NodeDef]
) -> Iterator[str]:
    if len(metadata.function_graphs) > 1:
        yield "several graphs in one tag: each gets a prefix, and its measurements are lost."
    for device in metadata.step_stats.dev_stats:
        if not _DEVICE.search(device.device):
            yield f"device {device.device!r} of measurements hatches every node."
        for stats in device.node_stats:
            yield from _measurement(stats, device.device, nodes)


def _measurement(
    stats: step_stats_pb2.NodeExecStats, device: str, nodes: dict[str, node_def_pb2.NodeDef]
) -> Iterator[str]:
    name = stats.node_name
    node = nodes.get(name)
    if node is None:
        yield f"measured node {name!r} is not in the graph."
    elif node.device != device:
        yield f"node {name!r}: measured on {device!r}, its device is {node.device!r}."
    if stats.all_end_rel_micros > 0 and stats.all_start_micros <= 0:
        yield f"node {name!r}: a start of 0 leaves it without a colour."
    if stats.all_end_rel_micros < 0:
        yield f"node {name!r}: a negative time is ignored."
    for output in stats.output:
        if not output.tensor_description.HasField("shape"):
            yield f"node {name!r}: a measured output without a shape stops all colouring."
