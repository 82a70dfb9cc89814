"""Test which outputs show each field of Node and ModuleRow; a new field needs a row here.

A cross in the table means that another value of the field changes this drawing, text, file or
difference. The test changes the value to check this.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.panels.tables import module_rows, node_rows
from graphviz_torch import Graph, diff, summary, to_text
from graphviz_torch.export import (
    to_dict,
    to_dot,
    to_model_explorer,
    to_networkx,
    to_pbtxt,
    view_payload,
)
from graphviz_torch.graph import (
    Edge,
    Fingerprint,
    GradientStats,
    ModuleRow,
    Node,
    SavedTensor,
    TensorMeta,
)
from graphviz_torch.graph.json import to_json
from tests.support.declared import IGNORED, declare

ROOT = Path(__file__).parents[2]
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
    where="net.py:7",
    note="compiled",
    saved=(SavedTensor("self", META, 32),),
    grad_outputs=(STATS,),
    order=1,
    seconds=0.002,
    placement="Shard(0) on tp, local [2, 2]",
    influence=1.0,
    reruns=1,
)
OTHER: dict[str, Any] = {
    "name": "DivBackward0",
    "outputs": (META._replace(shape=(8, 2)),),
    "label": "k",
    "operation": "div",
    "leaf": "tensor",
    "module": "head",
    "scope": "body#2",
    "where": "net.py:9",
    "note": "hook",
    "saved": (SavedTensor("other", META, 64),),
    "grad_outputs": (STATS._replace(norm=3.0),),
    "order": 5,
    "seconds": 0.2,
    "attributes": ("scale=3",),
    "module_class": "Net/Linear(4, 16)",
    "placement": "Replicate on tp, local [4, 2]",
    "fingerprints": (Fingerprint(8, 3.0, 0.5, -1.0, 2.0),),
    "values": ((1.5, math.nan),),
    "influence": 0.25,
    "reruns": 2,
    "call": "softmax",
}
ROWS = """
    field         file text dot view tensorboard diff rows networkx explorer app
    name          x    .    .   x    x           x    x    x        x        .
    outputs       x    x    x   x    x           x    x    x        x        x
    label         x    x    x   x    x           .    x    x        x        x
    operation     x    x    x   x    x           .    x    x        x        x
    leaf          x    .    x   x    x           .    x    x        x        x
    module        x    .    .   x    .           .    x    x        .        x
    scope         x    x    x   x    x           .    x    .        x        .
    where         x    x    x   x    x           .    x    x        x        x
    note          x    x    x   x    x           .    x    x        x        x
    saved         x    x    .   x    x           .    x    x        x        x
    grad_outputs  x    x    x   x    x           x    x    x        x        x
    order         x    .    .   x    x           .    x    x        x        .
    seconds       x    x    .   x    x           .    x    x        x        x
    attributes    x    x    .   x    x           .    x    x        x        x
    module_class  x    x    x   x    x           .    x    x        x        x
    placement     x    x    x   x    x           x    x    x        x        x
    fingerprints  x    x    .   x    x           .    x    x        x        .
    values        x    x    x   x    x           .    x    x        x        x
    influence     x    x    x   x    x           .    x    x        x        .
    reruns        x    x    .   x    x           .    x    x        x        .
    call          x    .    x   x    .           .    x    .        .        .
"""
TAKERS = ROWS.split("\n")[1].split()[1:]
# The same of ModuleRow: of the row of a module beside one with the value of before.
MODULE = ModuleRow("body", mode="train")
OTHER_MODULE: dict[str, Any] = {"mode": "eval"}
MODULE_ROWS = """
    field  file text summary color view tensorboard diff rows tab
    mode   x    x    x       x     x    x           x    x    x
"""
MODULE_TAKERS = MODULE_ROWS.split("\n")[1].split()[1:]


def graph(node: Node) -> Graph:
    first = Node(0, "AccumulateGrad", (META,), "x", leaf="tensor")
    last = Node(2, "SumBackward0", (META,), "y", "sum")
    return Graph((first, node, last), (Edge(0, 1), Edge(1, 2)), ((2, 0),))


def with_modules(row: ModuleRow) -> Graph:
    """Return a graph with two modules, the first of which has this row."""
    made = graph(NODE).annotate(module={2: "head"})
    return replace(made, modules=(row, MODULE._replace(path="head")))


def said(taker: str, a: Graph, before: Graph, folder: Path) -> object:
    take: dict[str, Callable[[], object]] = {
        "file": lambda: to_json(a),
        "text": lambda: to_text(a, wide=True),
        "summary": lambda: str(summary(a)),
        "color": lambda: to_dot(a, color_by="mode"),
        "dot": lambda: to_dot(a, detail="gradients"),
        "view": lambda: view_payload(a),
        "tensorboard": lambda: to_pbtxt(a, folder / "a.pbtxt").read_text(),
        "diff": lambda: str(diff(before, a)).startswith("No difference"),
        "rows": lambda: to_dict(a),
        "networkx": lambda: dict(to_networkx(a).nodes(data=True)),
        "explorer": lambda: [
            path.read_text() for path in to_model_explorer(a, folder / "explored.json")
        ],
        "app": lambda: node_rows(list(a.nodes)),
        "tab": lambda: module_rows(summary(a)),
    }
    return take[taker]()


def differing(before: Graph, after: Graph, takers: list[str], folder: Path) -> list[str]:
    """Return a cross for each output that differs for the second graph."""
    pairs = ([said(taker, each, before, folder) for each in (before, after)] for taker in takers)
    return ["x" if one != other else "." for one, other in pairs]


def rows(text: str = ROWS) -> dict[str, list[str]]:
    lines = [line.split() for line in text.strip().splitlines()]
    return {name: crosses for name, *crosses in lines[1:]}


def test_every_field_of_a_node_has_a_row() -> None:
    assert set(rows()) == set(OTHER) == set(Node._fields) - {"id"}
    assert set(rows(MODULE_ROWS)) == set(OTHER_MODULE) == set(ModuleRow._fields) - {"path"}


@pytest.mark.parametrize("field", OTHER)
def test_a_field_is_seen_where_its_row_says(field: str, tmp_path: Path) -> None:
    before, after = graph(NODE), graph(NODE._replace(**{field: OTHER[field]}))
    found = differing(before, after, TAKERS, tmp_path)
    assert found == rows()[field]


@pytest.mark.parametrize("field", OTHER_MODULE)
def test_a_field_of_a_module_is_seen_where_its_row_says(field: str, tmp_path: Path) -> None:
    other = MODULE._replace(**{field: OTHER_MODULE[field]})
    found = differing(with_modules(MODULE), with_modules(other), MODULE_TAKERS, tmp_path)
    assert found == rows(MODULE_ROWS)[field]


USE = """
from base64 import b64decode
from gzip import decompress
from pathlib import Path
from graphviz_torch import Graph, diff, to_text
from graphviz_torch.export import to_dict, to_dot, to_mermaid, to_model_explorer
from graphviz_torch.export import to_networkx, to_pbtxt, view_payload
from graphviz_torch.graph import Node, TensorMeta
from graphviz_torch.graph.json import from_json, to_json
meta = TensorMeta((4,), "float32", "cpu")
a, b = (Graph((Node(0, "MulBackward0", (meta,), temperature=t),)) for t in (40.0, 71.5))
assert from_json(to_json(b)) == b
plain = to_text(Graph((Node(0, "MulBackward0", (meta,)),)))
assert "71.5 C" in to_text(b) and "temperature" in to_text(b) and "temperature" not in plain
assert "71.5 C" in to_dot(b) and "71.5 C" in to_mermaid(b)
assert "temperature 40.0 C -> 71.5 C" in str(diff(a, b))
assert not diff(b, b) and not diff(b, Graph((Node(0, "MulBackward0", (meta,)),)))
assert b"temperature=71.5 C" in decompress(b64decode(view_payload(b)))
assert "71.5 C" in to_pbtxt(b, Path("b.pbtxt")).read_text()
assert to_networkx(b).nodes[0]["temperature"] == "71.5 C"
assert "71.5 C" in to_model_explorer(b, Path("b.json"))[0].read_text()
assert to_dict(b)["nodes"][0]["temperature"] == 71.5
from graphviz_torch.render.style import SCALE
assert SCALE[0][0] in to_dot(b, color_by="temperature")  # a number has a scale
assert ">temperature<" in to_dot(b, color_by="temperature").replace("B>", ">").replace("</>", "<")
"""


def test_a_declared_field_is_taken_by_all_and_one_without_a_row_fails(tmp_path: Path) -> None:
    declare(tmp_path)
    shutil.copytree(ROOT / "app", tmp_path / "app", ignore=IGNORED)

    def run(code: str) -> subprocess.CompletedProcess[str]:
        # The package with the field is found first; the tests are these.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    used = run(USE)
    assert used.returncode == 0, used.stderr
    guard = "from tests.graph.test_fields import test_every_field_of_a_node_has_a_row as t; t()"
    assert "AssertionError" in run(guard).stderr
