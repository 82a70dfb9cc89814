"""Find content that TensorBoard's Graphs tab would drop, merge or fail on.

Each rule mirrors one behavior of the tab's frontend, as seen in a browser with TensorBoard 2.20 and
2.21. A file that is read back without errors can still lose nodes, edges or colors in the tab.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tensorboard.compat.proto import (
    config_pb2,
    graph_pb2,
    node_def_pb2,
    step_stats_pb2,
)

from graphviz_torch.tensorboard.names import LIBRARY, LIMIT, REFERENCE_OPS, RESERVED, SERIES

_DEVICE = re.compile(r"/device:([^:]+:[0-9]+)$")
# "#" also occurs in the tab's own names; other characters break `querySelector` or the colors.
_FORBIDDEN = re.compile(r"[^\w.\-()\[\],#>+~/]|~~|//|^/|/$")
_MAX_CHILDREN = 2 * LIMIT  # children of a scope; LIMIT counts nodes before backward is added
_MAX_ATTRIBUTE_BYTES = 4096
_SOURCE = re.compile(r"([^:]+):(?:\w+:)?(\d+)")


def problems(
    graph: graph_pb2.GraphDef, metadata: config_pb2.RunMetadata | None = None
) -> Iterator[str]:
    """Yield one sentence for each node, edge or measurement that the Graphs tab would lose."""
    if not graph.node:
        yield "the graph is empty: the tab shows an error."
    nodes = {node.name: node for node in graph.node}
    if len(nodes) < len(graph.node):
        for name, count in Counter(node.name for node in graph.node).items():
            if count > 1:
                yield f"node {name!r}: {count} nodes have this name and are drawn as one."
    yield from _names(nodes)
    yield from _operations(nodes)
    yield from _inputs(nodes)
    yield from _devices(nodes)
    yield from _scopes(nodes)
    yield from _series(graph)
    yield from _attributes(graph)
    if metadata is not None:
        yield from _measurements(metadata, nodes)


def _names(nodes: Iterable[str]) -> Iterator[str]:
    for name in nodes:
        if not name:
            yield "a node has no name."
            continue
        first = name.partition("/")[0]
        if first in RESERVED or first.startswith(LIBRARY):
            yield f"node {name!r}: a first segment {first!r} breaks the page."
        bad = _FORBIDDEN.search(name)
        if bad:
            yield f"node {name!r}: {bad[0]!r} in a name loses its colour, its edges or its scope."


def _operations(nodes: Mapping[str, node_def_pb2.NodeDef]) -> Iterator[str]:
    for name, node in nodes.items():
        op = node.op
        if not op:
            yield f"node {name!r} has no operation."
        if "Const" in op:
            yield f"node {name!r}: operation {op!r} contains 'Const' and is swallowed."
        if op.endswith("Summary") and re.fullmatch(r"[a-zA-Z]+Summary", op):
            yield f"node {name!r}: operation {op!r} ends in 'Summary' and is swallowed."
        if op == "NoOp":
            yield f"node {name!r}: operation 'NoOp' is moved out of the graph."
        if op in REFERENCE_OPS and (not node.input or node.input[0] not in nodes):
            yield f"node {name!r}: operation {op!r} changes its input 0, and has none."


def _inputs(nodes: Mapping[str, node_def_pb2.NodeDef]) -> Iterator[str]:
    for name, node in nodes.items():
        last = None
        for entry in node.input:
            path, slot = _source(entry)
            if path == last:
                yield f"node {name!r}: two inputs from {path!r} follow each other and are merged."
            last = path
            source = nodes.get(path)
            if source is None:
                if entry != "^|":
                    yield f"node {name!r}: input {entry!r} names no node and is dropped."
            elif path == name:
                yield f"node {name!r}: an edge to itself is dropped."
            elif slot and not entry.startswith("^"):
                shapes = source.attr["_output_shapes"].list.shape
                if shapes and slot >= len(shapes):
                    yield f"node {name!r}: {path!r} has no shape for output {slot}."


def _source(entry: str) -> tuple[str, int]:
    name = entry.removeprefix("^")
    match = _SOURCE.fullmatch(name) if ":" in name else None
    return (match[1], int(match[2])) if match else (name, 0)


def _devices(nodes: Mapping[str, node_def_pb2.NodeDef]) -> Iterator[str]:
    for name, node in nodes.items():
        device = node.device
        if device and not _DEVICE.search(device):
            yield f"node {name!r}: device {device!r} is not like '/device:cuda:0'."


def _attributes(graph: graph_pb2.GraphDef) -> Iterator[str]:
    for node in graph.node:
        for key, value in node.attr.items():
            text = value.s or value.placeholder.encode()
            if len(text) > _MAX_ATTRIBUTE_BYTES:
                size = f"has {len(text)} bytes, the panel stalls"
                yield f"node {node.name!r}: attribute {key!r} {size}."
            if not value.s.isascii():
                octal = "is not ASCII and shows as octal numbers"
                yield f"node {node.name!r}: attribute {key!r} {octal}."


def _scopes(names: Iterable[str]) -> Iterator[str]:
    children: Counter[str] = Counter()
    paths: set[str] = set()
    for path in names:
        while path and path not in paths:
            paths.add(path)
            path = path.rpartition("/")[0]
            children[path] += 1
    for scope, count in children.items():
        if count > _MAX_CHILDREN:
            yield f"scope {scope!r} has {count} children, too many to draw or read."


def _series(graph: graph_pb2.GraphDef) -> Iterator[str]:
    families: dict[tuple[str, str, str], dict[int, str]] = {}
    for node in graph.node:
        scope, _, text = node.name.rpartition("/")
        match = text[-1:].isdecimal() and re.fullmatch(r"(\D*)(\d+)", text)
        if match:
            families.setdefault((scope, match[1], node.op), {})[int(match[2])] = node.name
    for numbers in families.values():
        for first in numbers:
            if first - 1 not in numbers and all(first + i in numbers for i in range(SERIES)):
                yield f"node {numbers[first]!r} and those numbered after it are folded into one."


def _measurements(
    metadata: config_pb2.RunMetadata, nodes: Mapping[str, node_def_pb2.NodeDef]
) -> Iterator[str]:
    if len(metadata.function_graphs) > 1:
        yield "several graphs in one tag: each gets a prefix, and its measurements are lost."
    for device in metadata.step_stats.dev_stats:
        if not _DEVICE.search(device.device):
            yield f"device {device.device!r} of measurements hatches every node."
        yield from _device_measurements(device.node_stats, device.device, nodes)


def _device_measurements(
    entries: Iterable[step_stats_pb2.NodeExecStats],
    device: str,
    nodes: Mapping[str, node_def_pb2.NodeDef],
) -> Iterator[str]:
    for stats in entries:
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
