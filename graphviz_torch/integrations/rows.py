"""`to_dict`: the graph as plain rows, for any program that reads JSON, with a published schema.

`Graph.save` writes columns, which are small and made to be loaded again. Rows are made to be read:
one object for each node, edge, transfer and parameter, each field by its name.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from ..graph import GraphLike, graph_of
from ..graph.events.base import Occurrence

FORMAT, VERSION = "graphviz_torch rows", 2
SCHEMA = Path(__file__).with_name("rows.schema.json")


def to_dict(graph: GraphLike) -> dict[str, Any]:
    """The graph as dicts, lists, strings and numbers: what `json.dumps` takes.

    "format" and "version" come first. NaN and infinite numbers are the strings "NaN", "Infinity"
    and "-Infinity", a complex number is a list of two. The schema is the file `rows.schema.json`
    beside this one; a field that is added does not change the version. An event has the name of its
    class as "kind".

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
        kind = {"kind": type(value).__name__} if isinstance(value, Occurrence) else {}
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
