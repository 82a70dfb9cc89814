"""`to_model_explorer`: show a graph in Google's Model Explorer, with gradients, time and memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..graph import Graph, GraphLike, Node, graph_of
from ..graph.collective import by_node
from ..graph.files.replacement import replacement
from ..graph.nodes import columns_except

_GRAPH = "autograd"
# Fields of `Node` that are written as text in the same way; `_nodes` writes the excluded fields.
_DECLARED = columns_except(Node, "scope", "where", "note", "saved", "seconds")
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
