"""Test the page and its data, read with the standard library only."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import random
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from graphviz_torch.graph import (
    Edge,
    Finding,
    GradientStats,
    Graph,
    Node,
    SavedTensor,
    TensorMeta,
)
from graphviz_torch.render import html
from graphviz_torch.render import view as view_bundle
from graphviz_torch.render.dot.dot import to_dot
from graphviz_torch.render.dot.layout import layout
from graphviz_torch.render.html import to_html, view
from graphviz_torch.render.view import view_script
from graphviz_torch.render.view.payload import view_payload

META = TensorMeta((8, 128), "float32", "cpu")
HOSTILE = "</script><script>alert(1)</script><!--\"'&\u2028☃"


def chain(count: int, *, blocks: int = 40) -> Graph:
    """A chain in modules of `blocks` nodes, each node with every value that can be recorded."""
    rnd = random.Random(0)
    nodes = []
    for i in range(count):
        numbers = (rnd.lognormvariate(0, 3), rnd.lognormvariate(0, 3), rnd.gauss(0, 1))
        nodes.append(
            Node(
                i,
                "MulBackward0" if i else "AccumulateGrad",
                (META,),
                label=f"layers.{i // blocks}.weight" if i % blocks == 1 else "",
                operation="mul" if i else "",
                leaf="" if i else "tensor",
                module=f"layers.{i // blocks}",
                scope=f"layers.{i // blocks}",
                where=f"model.py:{i % blocks}",
                saved=(SavedTensor("self", META, 4096),),
                grad_outputs=(GradientStats(*numbers, rnd.random(), tensor=META),),
                order=count - 1 - i,
                seconds=rnd.lognormvariate(-10, 1),
            )
        )
    return Graph(tuple(nodes), tuple(Edge(i - 1, i) for i in range(1, count)), ((count - 1, 0),))


class Payload:
    """The data of a page, read only by its documented form."""

    def __init__(self, text: str) -> None:
        data = gzip.decompress(base64.b64decode(text))
        (length,) = struct.unpack("<I", data[:4])
        self.header: dict[str, Any] = json.loads(data[4 : 4 + length])
        self.columns: dict[str, list[Any]] = {}
        at = 4 + length
        for name, kind, size, rows in self.header["columns"]:
            planes = [data[at + plane * rows : at + (plane + 1) * rows] for plane in range(size)]
            cells = [bytes(cell) for cell in zip(*planes, strict=True)]
            at += size * rows
            self.columns[name] = self._column(kind, cells)
        assert at == len(data)

    @staticmethod
    def _column(kind: str, cells: list[bytes]) -> list[Any]:
        if kind == "measured":
            return [struct.unpack("<d", cell)[0] for cell in cells]
        numbers = [int.from_bytes(cell, "little") for cell in cells]
        if kind == "number":
            return numbers
        signed = [-(n + 1) // 2 if n % 2 else n // 2 for n in numbers]
        return signed if kind == "signed" else [sum(signed[: i + 1]) for i in range(len(signed))]


class Tags(HTMLParser):
    """The elements of a page, with attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_payload_holds_every_value_of_every_node() -> None:
    graph = chain(90)
    payload = Payload(view_payload(graph, title="chain"))
    header, columns = payload.header, payload.columns
    assert header["count"] == 90
    assert header["title"] == "chain"
    for name in ("name", "operation", "module", "where"):
        at = columns.get(name, [0] * 90)
        assert [header[name][i] for i in at] == [getattr(node, name) for node in graph.nodes]
    labels = [header["label"][i] for i in columns["label"]]
    for node, label in zip(graph.nodes, labels, strict=True):
        whole = label if isinstance(label, str) else f"{node.module}.{label[0]}"
        assert whole == node.label
    assert columns["order"] == [node.order for node in graph.nodes]
    assert columns["edgeSource"] == [edge.target - edge.source for edge in graph.edges]
    shapes = [header["shapes"][i] for i in columns["shapes"]]
    assert all(header["metas"][at] == [[8, 128], "float32", "cpu", 4096] for (at,) in shapes)
    for name, values in {
        "norm": [node.grad_outputs[0].norm for node in graph.nodes],
        "maxAbs": [node.grad_outputs[0].max_abs for node in graph.nodes],
        "mean": [node.grad_outputs[0].mean for node in graph.nodes],
        "zeros": [node.grad_outputs[0].zero_fraction for node in graph.nodes],
        "seconds": [node.seconds for node in graph.nodes],
    }.items():
        rel = 2**-10 if name == "seconds" else 2**-21
        assert columns[name] == pytest.approx(values, rel=rel)


def test_numbers_of_a_large_graph_are_off_by_at_most_one_part_in_16000() -> None:
    graph = chain(6_000)
    norms = Payload(view_payload(graph)).columns["norm"]
    assert norms == pytest.approx([node.grad_outputs[0].norm for node in graph.nodes], rel=2**-14)


def test_what_was_not_recorded_is_absent_or_no_number() -> None:
    graph = chain(3).annotate(seconds={1: None}, grad_outputs={0: (), 1: (None,), 2: ()})
    payload = Payload(view_payload(graph))
    assert [math.isnan(value) for value in payload.columns["seconds"]] == [False, True, False]
    assert "norm" not in payload.columns


def test_a_node_with_all_its_values_takes_at_most_16_bytes() -> None:
    graph = chain(20_000)
    assert len(view_payload(graph)) / len(graph.nodes) <= 16


def test_the_same_graph_gives_the_same_page_of_which_the_view_takes_at_most_200_kilobytes() -> None:
    assert to_html(chain(50)) == to_html(chain(50))
    page = to_html(Graph((Node(0, "AccumulateGrad", (META,), leaf="tensor"),)))
    assert len(page.encode()) <= 200_000


def test_the_page_names_nothing_outside_itself() -> None:
    for tag, attributes in Tags(to_html(chain(5))).found:
        assert tag not in ("link", "iframe", "img", "object", "base")
        assert not attributes.keys() & {"src", "href", "action"}
        assert not [name for name in attributes if name.startswith("on")]


def test_the_page_allows_no_script_but_its_own() -> None:
    page = to_html(chain(5))
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (a["content"] or "" for _, a in Tags(page).found if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


def test_the_bundle_can_stand_inside_a_script_element() -> None:
    assert "</script" not in view_script().lower()
    assert "<!--" not in view_script()


def test_hostile_names_do_not_change_the_page() -> None:
    plain = chain(4)
    hostile = plain.annotate(
        **{
            name: {1: HOSTILE}
            for name in ("label", "operation", "module", "scope", "where", "note")
        }
    )
    finding = Finding(HOSTILE, "error", HOSTILE, HOSTILE, nodes=(1,))
    page = to_html(hostile, title=HOSTILE, findings=[finding])
    assert [tag for tag, _ in Tags(page).found] == [tag for tag, _ in Tags(to_html(plain)).found]
    assert Payload(view_payload(hostile)).header["note"] == ["", HOSTILE]


def test_the_page_is_written_where_asked_and_a_folder_that_is_missing_is_an_error(
    tmp_path: Path,
) -> None:
    page = to_html(chain(2), tmp_path / "graph.html", title="two ☃")
    assert (tmp_path / "graph.html").read_text(encoding="utf-8") == page
    assert "<title>two ☃</title>" in page
    with pytest.raises(FileNotFoundError):
        to_html(chain(2), tmp_path / "missing" / "graph.html")


def test_a_notebook_gets_the_page_in_a_frame_and_a_picture_where_scripts_do_not_run() -> None:
    cell = view(chain(3))._repr_html_()
    tags = Tags(cell).found
    (frame,) = (attributes for tag, attributes in tags if tag == "iframe")
    assert frame["sandbox"] == "allow-scripts allow-downloads"
    alone = "<noscript>This view of an autograd graph needs JavaScript.</noscript>"
    assert frame["srcdoc"] == to_html(chain(3)).replace(alone, "")
    (picture,) = (attributes for tag, attributes in tags if tag == "img")
    assert (picture["src"] or "").startswith("data:image/svg+xml;base64,")
    assert cell.index("<img") < cell.index("<iframe")  # what comes later lies above


def test_without_the_bundle_the_error_says_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    view_script.cache_clear()
    monkeypatch.setattr(view_bundle, "_BUNDLE", tmp_path / "view.js")
    with pytest.raises(FileNotFoundError, match="pip install"):
        html.to_html(chain(2))


def test_the_still_picture_in_a_notebook_fits_a_page_as_draw_graph_does() -> None:
    graph = chain(230)
    (data,) = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", view(graph)._repr_html_())
    assert base64.b64decode(data) == layout(to_dot(graph))
    assert to_dot(graph) != to_dot(graph, detail="full")
