"""Test how DOT text shows cuts, failures and missing gradients."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch
from torch import nn

from graphviz_torch import record
from graphviz_torch.export import to_dot, to_mermaid
from graphviz_torch.graph import (
    Cut,
    Edge,
    Failure,
    Finding,
    GradientStats,
    Graph,
    Node,
    Operand,
    SavedTensor,
)
from graphviz_torch.render.dot.layout import layout
from graphviz_torch.render.style import COLORS
from tests.support.drawn import F32, HOSTILE, texts, two
from tests.support.models import MLP


def cuts(dot: str) -> list[tuple[str, str, str]]:
    """Return the ends and colors of the dashed lines, as Graphviz reads them."""
    read = json.loads(layout(dot, "json"))
    names = {o["_gvid"]: o["name"] for o in read["objects"]}
    dashed = [edge for edge in read.get("edges", []) if edge.get("style") == "dashed"]
    return [(names[edge["tail"]], names[edge["head"]], edge["color"]) for edge in dashed]


def shown(where: str) -> str:
    """Return the end of a source line that is longer than 40 characters."""
    return where if len(where) <= 40 else f"…{where[-40:]}"


@pytest.mark.parametrize("where", ["train.py:18", *HOSTILE])
def test_a_cut_is_a_dashed_line_between_its_sides_in_the_colour_of_its_finding(where: str) -> None:
    rows = [Node(i, "MulBackward0", (F32,), operation="mul") for i in range(3)]
    cut = Cut("detach", F32, before=0, after=(1, 1), where=where)
    graph = Graph(tuple(rows), (Edge(1, 2),), ((2, 0),), cuts=(cut, cut))
    finding = Finding("cut-gradient", "warning", "Cut.", nodes=(0, 1))
    plain, told = (to_dot(graph, findings=found) for found in ([], [finding]))
    for dot, color in ((plain, "muted"), (told, "warning")):
        assert cuts(dot) == [("0", "1", COLORS[color][0])]
    said = " ".join("".join(ET.fromstring(layout(told)).itertext()).split())
    assert "\N{BLACK SCISSORS} detach()" in said
    assert all(" ".join(line.split()) in said for line in shown(where).split("\n"))


def test_the_indices_of_a_router_are_no_cut_unless_a_finding_tells_of_them() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    with record() as recording:
        weights, chosen = x.softmax(-1).topk(2)
        loss = (weights * x.exp().gather(1, chosen)).sum()
        loss.backward()
    graph = recording.graph
    [cut] = graph.cuts
    assert cut.how == "topk"
    assert cut.before is not None
    assert x.grad is not None
    assert cuts(to_dot(graph)) == []
    told = Finding("cut-gradient", "warning", "Cut.", nodes=(cut.before, *cut.after))
    assert cuts(to_dot(graph, findings=[told]))


def test_the_indices_of_a_router_in_a_closed_module_are_not_counted_as_cuts() -> None:
    rows = [Node(i, "MulBackward0", (F32,), module="net", scope="net") for i in range(3)]
    edges = (Edge(0, 1), Edge(1, 2))
    for how, counted in (("topk", False), ("detach", True)):
        graph = Graph(tuple(rows), edges, ((2, 0),), cuts=(Cut(how, F32, 0, (2,)),))
        assert ("1 cut is not drawn" in to_dot(graph, depth=0)) is counted


@pytest.mark.parametrize("where", ["train.py:18", *HOSTILE])
def test_a_cut_with_one_side_in_the_graph_ends_at_a_text_beside_it(where: str) -> None:
    rows = [Node(i, "MulBackward0", (F32,), operation="mul") for i in range(3)]
    into = Cut("argmin", F32, after=(1, 2), where=where, label="code")
    out_of = Cut("tolist", F32, before=0, where=where)
    graph = Graph(tuple(rows), (Edge(1, 2),), ((2, 0),), cuts=(into, out_of))
    finding = Finding("cut-gradient", "error", "Cut.", nodes=(0,), where=where)
    muted, told = COLORS["muted"][0], COLORS["error"][0]
    dot = to_dot(graph, findings=[finding])
    assert cuts(dot) == [("cut_0", "1", muted), ("0", "cut_1", told)]
    svg = layout(dot)
    lines = [texts(svg, f"cut_{number}") for number in range(2)]
    assert [" ".join(" ".join(read).split()) for read in lines] == [
        " ".join(f"\N{BLACK SCISSORS} {text} {shown(where)}".split())
        for text in ("argmin() of code f32[3]", "tolist() f32[3]")
    ]
    mermaid = to_mermaid(graph)
    assert re.search(r'^cut0\["[^"]+"\] -\.- n1$', mermaid, re.M)
    assert re.search(r'^n0 -\.- cut1\["[^"]+"\]$', mermaid, re.M)


def test_an_encoder_behind_the_codes_of_a_codebook_shows_where_it_was_cut() -> None:
    encoder, decoder = nn.Linear(4, 3), nn.Linear(3, 4)
    codes = torch.ones(5, 3, requires_grad=True)
    with record(nn.ModuleList([encoder, decoder])) as recording:
        z = encoder(torch.ones(2, 4))
        nearest = torch.cdist(z.detach(), codes).argmin(1)
        decoder(codes[nearest]).sum().backward()
    graph = recording.graph
    titles = {str(node.id): node.title for node in graph.nodes}
    ends = {(titles.get(tail), titles.get(head)) for tail, head, _ in cuts(to_dot(graph))}
    assert ends >= {("addmm", None), (None, "index")}
    said = "".join(ET.fromstring(layout(to_dot(graph))).itertext())
    assert "detach() of z" in said
    assert "argmin()" in said


def test_a_cut_inside_one_closed_group_is_not_drawn() -> None:
    rows = [Node(i, "MulBackward0", (F32,), module="m", scope="m") for i in range(3)]
    cut = Cut("detach", F32, before=0, after=(1,), where="train.py:18")
    graph = Graph(tuple(rows), (Edge(1, 2),), ((2, 0),), cuts=(cut,))
    assert len(cuts(to_dot(graph, depth=1))) == 1
    assert cuts(to_dot(graph, depth=0)) == []


def test_a_cut_of_a_parameter_is_not_drawn_from_the_operation_that_uses_it() -> None:
    layer = nn.Linear(2, 2)
    with record(layer) as recording:
        x = layer(torch.ones(1, 2))
        torch.nn.functional.linear(x, layer.weight.detach()).sum().backward()
    assert recording.graph.cuts
    assert cuts(to_dot(recording.graph, parameters="fold")) == []
    nodes = to_dot(recording.graph, parameters="nodes")
    assert len(cuts(nodes)) == 1


def test_a_cut_between_blocks_that_are_drawn_once_is_told_and_not_drawn() -> None:
    blocks = nn.ModuleList(MLP() for _ in range(6))
    for block in blocks:
        block.fc2 = nn.Linear(8, 4)
    with record(blocks) as recording:
        x = torch.ones(2, 4)
        for i, block in enumerate(blocks):
            x = block(x).detach() if i == 2 else block(x)
        x.sum().backward()
    open_ = to_dot(recording.graph, fold=False)
    assert len(cuts(open_)) == 1
    folded = to_dot(recording.graph, fold=True)
    assert cuts(folded) == []
    assert "1 cut is not drawn" in folded


def test_many_cuts_are_bounded() -> None:
    rows = [Node(i, "MulBackward0", (F32,), operation="mul") for i in range(20)]
    seen = [Cut("detach", F32, i, (j,), f"a.py:{i}") for i in range(20) for j in range(i + 1, 20)]
    graph = Graph(tuple(rows), (), ((19, 0),), cuts=tuple(seen))
    dot = to_dot(graph, fold=False)
    assert len(cuts(dot)) == 40
    assert "150 cuts are not drawn" in dot


def test_a_long_message_does_not_make_the_picture_wide() -> None:
    finding = Finding("cut-gradient", "error", "many words " * 300)
    svg = layout(to_dot(two(), findings=[finding])).decode()
    width = re.search(r'<svg width="(\d+)pt"', svg)
    assert width is not None
    assert int(width[1]) < 900


def test_what_failed_is_a_dashed_node_behind_what_went_into_it() -> None:
    operands = (Operand("a", F32, node=1), Operand("b", F32), Operand("x", F32, node=0))
    failure = Failure("RuntimeError", "sizes <differ>\nstack", "add", "net.py:9", operands)
    dot = to_dot(replace(two(), failure=failure))
    assert sorted(ends[:2] for ends in cuts(dot)) == [("0", "failed"), ("1", "failed")]
    svg = layout(dot)
    assert texts(svg, "failed") == ["add", "✖ RuntimeError", "net.py:9"]
    said = "".join(ET.fromstring(svg).itertext())
    assert "✖ add at net.py:9 ended with RuntimeError: sizes <differ>" in said
    assert "stack" not in said


@pytest.mark.parametrize(
    "failure", [Failure("KeyboardInterrupt", ""), Failure("ValueError", "no", "backward")]
)
def test_what_failed_without_operands_is_told_and_has_no_node(failure: Failure) -> None:
    svg = layout(to_dot(replace(two(), failure=failure)))
    assert "<title>failed</title>" not in svg.decode()
    assert f"ended with {failure.error}" in "".join(ET.fromstring(svg).itertext())


def test_the_node_that_backward_could_not_run_is_marked() -> None:
    failure = Failure("ValueError", "no", "backward", "train.py:9", node=1)
    svg = layout(to_dot(replace(two(), failure=failure)))
    assert "✖ exception" in texts(svg, "1")
    assert "✖ exception" not in texts(svg, "0")


def test_a_failure_that_a_finding_tells_is_told_once() -> None:
    failure = Failure("RuntimeError", "bad", "add", "net.py:9", (Operand("a", F32, node=1),))
    found = Finding("mixed-devices", "error", "add got a on cpu.", nodes=(1,))
    svg = layout(to_dot(replace(two(), failure=failure), findings=[found]))
    said = "".join(ET.fromstring(svg).itertext())
    assert "ended with" not in said
    assert "✖ mixed-devices" in texts(svg, "1")
    assert "<title>failed</title>" in svg.decode()


def test_a_node_without_a_gradient_is_dashed_where_gradients_are_the_colours() -> None:
    stats = (GradientStats(1.0, 1.0, 0.0, 0.0),)
    some = to_dot(two(grad_outputs=stats), color_by="gradient")
    assert [line for line in some.splitlines() if line.startswith("\t0 ") and "dashed" in line]
    assert "no gradient" in some
    both = two(grad_outputs=stats).annotate(grad_outputs={0: stats})
    assert "dashed" not in to_dot(both, color_by="gradient")
    saved = two(saved=(SavedTensor("self", F32, 12),))
    assert "dashed" not in to_dot(saved, color_by="saved")
