"""Export graphs for other tools: dicts, networkx, Chrome traces, and Google's Model Explorer.

`Graph.save` writes compact columns, which this package loads again. The rows of `to_dict` are
easier to read: each node, edge, transfer and parameter is one dict with named fields.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..graph import Collective, Graph, GraphLike, Node, graph_of
from ..graph.collective import align_times, by_node
from ..graph.events import Event
from ..graph.files.replacement import replacement
from ..graph.gc import with_gc_disabled
from ..graph.nodes import columns_except
from ..graph.text import printable

FORMAT, VERSION = "graphviz_torch rows", 2
SCHEMA = Path(__file__).with_name("rows.schema.json")


@with_gc_disabled
def to_dict(graph: GraphLike) -> dict[str, Any]:
    """Return the graph as dicts, lists, strings and numbers that `json.dumps` accepts.

    The first keys are "format" and "version". NaN and infinite numbers are the strings "NaN",
    "Infinity" and "-Infinity". A complex number is a list of its real and imaginary part. The
    "kind" of an event is the name of its class. The JSON schema is the file `rows.schema.json` of
    this package. Added fields do not change the version.

    Raises:
        TypeError: if `graph` is not a graph, a recording or a tensor.

    >>> from graphviz_torch.graph import Graph, Node, TensorMeta
    >>> made = to_dict(Graph((Node(0, "AccumulateGrad", (TensorMeta((3,), "float32", "cpu"),)),)))
    >>> made["nodes"][0]["outputs"]
    [{'shape': [3], 'dtype': 'float32', 'device': 'cpu'}]
    """
    return {"format": FORMAT, "version": VERSION, **_plain(graph_of(graph))}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        kind = {"kind": type(value).__name__} if isinstance(value, Event) else {}
        return kind | {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return {name: _plain(each) for name, each in zip(fields, value, strict=True)}
        return [_plain(each) for each in value]
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


# Fields of `Node` that are written as text in the same way; `_attributes` writes the others.
_DECLARED = columns_except(Node, "scope", "where", "note", "saved", "seconds")


def to_networkx(graph: GraphLike) -> Any:
    """Return the graph as a `networkx.MultiDiGraph`; edges point in the direction of forward.

    Nodes have autograd's `name` and, if recorded, `label`, `operation`, `leaf`, `module`, `where`,
    `note`, `shape` ("2x3", first output), `dtype`, `device`, `order`, `seconds`, `saved_bytes`,
    `gradient_norm` (first output), `attributes` and `collectives`. Edges have `output_nr` and
    `input_nr`; the edge's key is `input_nr`. All attributes are text or numbers, as
    `networkx.write_graphml` requires; characters that XML cannot contain are replaced by Python
    escapes.

    Raises:
        ImportError: if networkx is not installed.
        TypeError: if `graph` is not a graph, a recording or a tensor.

    >>> from graphviz_torch.graph import Edge, Graph
    >>> square = Graph((Node(0, "AccumulateGrad", (), "x"), Node(1, "MulBackward0", ())),
    ...                (Edge(0, 1, 0, 0), Edge(0, 1, 0, 1)))
    >>> made = to_networkx(square)
    >>> made.nodes[0]
    {'name': 'AccumulateGrad', 'label': 'x'}
    >>> made.number_of_edges(0, 1)
    2
    """
    try:
        import networkx  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ImportError("to_networkx needs networkx: pip install networkx.") from None
    value = graph_of(graph)
    made = networkx.MultiDiGraph()
    sent = by_node(value.collectives)
    for node in value.nodes:
        between = "; ".join(map(str, sent.get(node.id, ())))
        made.add_node(node.id, **_attributes(node, printable(between)))
    for edge in value.edges:
        made.add_edge(
            edge.source,
            edge.target,
            key=edge.input_nr,
            output_nr=edge.output_nr,
            input_nr=edge.input_nr,
        )
    return made


def _attributes(node: Node, collectives: str) -> dict[str, str | int | float]:
    meta = next((each for each in node.outputs if each is not None), None)
    stats = next((each for each in node.grad_outputs if each is not None), None)
    found: dict[str, Any] = {
        name: printable(getattr(node, name))
        for name in ("name", "label", "operation", "leaf", "module", "where", "note")
    }
    if meta is not None:
        found["shape"] = "x".join(map(str, meta.shape)) or "scalar"
        found["dtype"], found["device"] = meta.dtype, printable(meta.device)
    found["order"], found["seconds"] = node.order, node.seconds
    found["saved_bytes"] = node.saved_bytes if node.saved else None
    found["gradient_norm"] = None if stats is None else stats.norm
    found["gradient_extent"] = None if stats is None else stats.extent
    found["collectives"] = collectives
    found |= {name: printable(column.text(getattr(node, name))) for name, column in _DECLARED}
    return {name: each for name, each in found.items() if each is not None and each != ""}


_MICROSECONDS = 1e6


def to_chrome_trace(graph: GraphLike, path: str | Path | None = None) -> dict[str, Any]:
    """Return the measured times as events of the Trace Event Format, and write them to `path`.

    A recording measures the duration of each node of backward and, with `record(clock=True)`, of
    each copy on CUDA. Start times and the forward pass are not measured. In the trace, the nodes
    therefore follow each other without gaps, in the order in which they ran. A collective in
    backward is an instant event at the end of its node. Measured durations of collectives are in a
    second process of the trace, with one track per rank and one time axis for all ranks.

    Args:
        graph: a recording or its graph.
        path: a ".json" file to write, which ui.perfetto.dev opens.

    Returns:
        The content of the file. Times are in microseconds. One track shows the nodes of backward,
        another one the copies.

    Raises:
        ValueError: if no time was measured, as for a traced graph or a forward without backward.
        OSError: if `path` cannot be written.

    >>> from graphviz_torch import record
    >>> import torch
    >>> with record() as recording:
    ...     torch.ones(2, requires_grad=True).exp().sum().backward()
    >>> len(to_chrome_trace(recording)["traceEvents"]) > 0
    True
    """
    value = graph_of(graph)
    ran = [node for node in value.nodes if node.order is not None and node.seconds is not None]
    ran.sort(key=lambda node: node.order or 0)
    tracks: dict[str, list[tuple[str, float, dict[str, Any]]]] = {
        "backward, end to end": [
            (
                f"{node.title} {node.label}".strip(),
                node.seconds or 0.0,
                {
                    "node": node.id,
                    "autograd": node.name,
                    "module": node.module,
                    "where": node.where,
                    "outputs": ", ".join(map(str, node.outputs)),
                },
            )
            for node in ran
        ],
        "copies, end to end": [
            (
                f"{copy.kind} {copy.label}".strip(),
                copy.seconds,
                {"from": copy.source, "to": copy.target, "bytes": copy.nbytes, "at": copy.where},
            )
            for copy in value.transfers
            if copy.seconds is not None
        ],
    }
    if not any(tracks.values()):
        raise ValueError(
            "no time was measured in this graph: run backward inside "
            "`with record(model) as recording:` and pass the recording."
        )
    events: list[dict[str, Any]] = []
    for track, entries in enumerate(tracks.items()):
        name, rows = entries
        if rows:
            meta = {"name": "thread_name", "ph": "M", "pid": 0, "tid": track}
            events.append({**meta, "args": {"name": name}})
        begin = 0.0
        for title, seconds, arguments in rows:
            duration = seconds * _MICROSECONDS
            event = {"name": title, "cat": "autograd", "ph": "X", "ts": begin, "dur": duration}
            events.append({**event, "pid": 0, "tid": track, "args": arguments})
            begin += duration
    ends: dict[int, float] = {}  # node id -> time in the trace at which the node ends
    now = 0.0
    for node in ran:
        ends[node.id] = now = now + (node.seconds or 0.0) * _MICROSECONDS
    for each in value.collectives:
        if each.phase == "backward" and each.node in ends:
            about = {"module": each.module, "group": each.group, "ranks": each.group_size}
            about |= {"bytes": each.nbytes, "dtype": each.dtype, "at": each.where}
            event = {
                "name": each.kind,
                "cat": "collective",
                "ph": "i",
                "s": "t",
                "pid": 0,
                "tid": 0,
            }
            events.append({**event, "ts": ends[each.node], "args": about})
    events += _collective_events(value.collectives)
    made = {"displayTimeUnit": "ns", "traceEvents": events}
    if path is not None:
        with replacement(path) as file:
            file.write(json.dumps(made).encode())
    return made


def _collective_events(collectives: Sequence[Collective]) -> list[dict[str, Any]]:
    """Return the measured durations of collectives as events, with one track per rank."""
    rows = align_times(
        [each for each in collectives if any(t.seconds is not None for t in each.times)]
    )
    return [
        {
            "name": each.kind,
            "cat": "collective",
            "ph": "X",
            "ts": begin * _MICROSECONDS,
            "dur": seconds * _MICROSECONDS,
            "pid": 1,
            "tid": rank,
            "args": {"bytes": each.nbytes, "group": each.group, "at": each.where},
        }
        for rank, bars in rows.items()
        for begin, seconds, each in bars
    ]


_GRAPH = "autograd"
# Fields of `Node` that are written as text in the same way; `_nodes` writes the excluded fields.
_COLORS = ("#ffffff", "#f4c45a", "#c22a1e")  # color scale, from the lowest to the highest value


def to_model_explorer(graph: GraphLike, path: str | Path) -> list[Path]:
    """Write a graph file for Model Explorer, and next to it a file for each kind of measurement.

    Args:
        graph: a graph, a recording or a tensor.
        path: a ".json" file, such as "step.json". Measurements go to "step.gradient.json" (gradient
            norms), "step.time.json" (microseconds in backward) and "step.memory.json" (bytes saved
            for backward). A file is written only if its measurement was recorded.

    Returns:
        The paths of the written files. Open the first one, the graph, in Model Explorer; load the
        others as "Node data".

    Raises:
        TypeError: if `graph` is not a graph, a recording or a tensor.
        OSError: if a file cannot be written.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> y = torch.ones(2, requires_grad=True).exp()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in to_model_explorer(y, Path(folder) / "step.json")]
    ['step.json']
    """
    value, path = graph_of(graph), Path(path)
    collection = {
        "label": path.stem,
        "graphs": [{"id": _GRAPH, "nodes": _nodes(value)}],
    }
    with replacement(path) as file:
        file.write(json.dumps(collection).encode())
    written = [path]
    for name, measure in _MEASURES.items():
        results = {
            str(node.id): {"value": number}
            for node in value.nodes
            if (number := measure(node)) is not None
        }
        if results:
            stops = [{"stop": i / 2, "bgColor": color} for i, color in enumerate(_COLORS)]
            data = {_GRAPH: {"name": name, "results": results, "gradient": stops}}
            data_path = path.with_name(f"{path.stem}.{name}.json")
            with replacement(data_path) as file:
                file.write(json.dumps(data).encode())
            written.append(data_path)
    return written


def _gradient(node: Node) -> float | None:
    return next((each.norm for each in node.grad_outputs if each is not None), None)


_MEASURES: dict[str, Callable[[Node], float | None]] = {
    "gradient": _gradient,
    "time": lambda node: None if node.seconds is None else node.seconds * 1e6,
    "memory": lambda node: node.saved_bytes if node.saved else None,
}


def _nodes(graph: Graph) -> list[dict[str, Any]]:
    inputs, sent = graph.inputs(), by_node(graph.collectives)
    return [
        {
            "id": str(node.id),
            "label": node.label or node.title,
            "namespace": "/".join(part for part in (node.scope or node.module).split(".") if part),
            "attrs": [
                {"key": key, "value": str(each)}
                for key in ("name", "operation", "leaf", "where", "note", "order")
                if (each := getattr(node, key)) not in ("", None)
            ]
            + [
                {"key": column.title, "value": text}
                for name, column in _DECLARED
                if (text := column.text(getattr(node, name)))
            ]
            + [{"key": "between ranks", "value": str(each)} for each in sent.get(node.id, ())],
            "incomingEdges": [
                {
                    "sourceNodeId": str(edge.source),
                    "sourceNodeOutputId": str(edge.output_nr),
                    "targetNodeInputId": str(edge.input_nr),
                }
                for edge in inputs[node.id]
            ],
            "outputsMetadata": [
                {
                    "id": str(nr),
                    "attrs": [
                        {"key": "tensor_shape", "value": f"{meta.dtype}{list(meta.shape)}"},
                        {"key": "device", "value": meta.device},
                    ],
                }
                for nr, meta in enumerate(node.outputs)
                if meta is not None
            ],
        }
        for node in graph.nodes
    ]
