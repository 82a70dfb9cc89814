"""`to_dict`: export a graph as plain dicts and lists with a JSON schema, for any other program.

`Graph.save` writes compact columns, which this package loads again. Rows are easier to read: each
node, edge, transfer and parameter is one dict with named fields.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from ..graph import GraphLike, graph_of
from ..graph.events import Event
from ..graph.gc import with_gc_disabled

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
