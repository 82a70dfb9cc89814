"""Each field of Node, and who shows it: a new field fails here until its row is written.

A cross says that another value of the field makes another drawing, text, file or difference. The
answer comes from doing so, not from the code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphviz_torch import (
    Edge,
    GradientStats,
    Graph,
    Node,
    SavedTensor,
    TensorMeta,
    diff,
    to_dot,
    to_pbtxt,
    to_text,
    view_payload,
)
from graphviz_torch.graph.json import to_json

META = TensorMeta((4, 2), "float32", "cpu")
STATS = GradientStats(1.0, 0.5, 0.1, 0.0)
# An operation between two others, with every field recorded.
NODE = Node(
    1,
    "MulBackward0",
    (META,),
    label="h",
    operation="mul",
    module="body",
    scope="body",
    source="net.py:7",
    note="compiled",
    saved=(SavedTensor("self", META, 32),),
    grad_outputs=(STATS,),
    order=1,
    seconds=0.002,
)
OTHER: dict[str, Any] = {
    "name": "DivBackward0",
    "outputs": (META._replace(shape=(8, 2)),),
    "label": "k",
    "operation": "div",
    "leaf": "tensor",
    "module": "head",
    "scope": "body#2",
    "source": "net.py:9",
    "note": "hook",
    "saved": (SavedTensor("other", META, 64),),
    "grad_outputs": (STATS._replace(norm=3.0),),
    "order": 5,
    "seconds": 0.2,
    "attributes": ("scale=3",),
    "module_class": "Net/Linear(4, 16)",
}
TAKERS = ("file", "text", "dot", "view", "tensorboard", "diff")
ROWS = """
    field         file text dot view tensorboard diff
    name          x    .    .   x    x           x
    outputs       x    x    x   x    x           x
    label         x    x    x   x    x           .
    operation     x    x    x   x    x           .
    leaf          x    .    x   x    x           .
    module        x    .    .   x    .           .
    scope         x    x    x   x    x           .
    source        x    x    x   x    x           .
    note          x    x    x   x    x           .
    saved         x    x    .   x    x           .
    grad_outputs  x    x    x   x    x           x
    order         x    .    .   x    x           .
    seconds       x    x    .   x    x           x
    attributes    x    x    .   x    .           .
    module_class  x    .    x   x    .           .
"""


def graph(node: Node) -> Graph:
    first = Node(0, "AccumulateGrad", (META,), "x", leaf="tensor")
    last = Node(2, "SumBackward0", (META,), "y", "sum")
    return Graph((first, node, last), (Edge(0, 1), Edge(1, 2)), ((2, 0),))


def said(taker: str, a: Graph, folder: Path) -> object:
    take: dict[str, Callable[[], object]] = {
        "file": lambda: to_json(a),
        "text": lambda: to_text(a),
        "dot": lambda: to_dot(a),
        "view": lambda: view_payload(a),
        "tensorboard": lambda: to_pbtxt(a, folder / "a.pbtxt").read_text(),
        "diff": lambda: str(diff(graph(NODE), a)).startswith("No difference"),
    }
    return take[taker]()


def rows() -> dict[str, list[str]]:
    lines = [line.split() for line in ROWS.strip().splitlines()]
    assert lines[0] == ["field", *TAKERS]
    return {name: crosses for name, *crosses in lines[1:]}


def test_every_field_of_a_node_has_a_row() -> None:
    assert set(rows()) == set(OTHER) == set(Node._fields) - {"id"}


@pytest.mark.parametrize("field", OTHER)
def test_a_field_is_seen_where_its_row_says(field: str, tmp_path: Path) -> None:
    before, after = graph(NODE), graph(NODE._replace(**{field: OTHER[field]}))
    found = [
        "x" if said(taker, before, tmp_path) != said(taker, after, tmp_path) else "."
        for taker in TAKERS
    ]
    assert found == rows()[field]
