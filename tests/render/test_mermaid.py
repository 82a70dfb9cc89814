"""Test `to_mermaid` with a small grammar of the lines that it may write."""

from __future__ import annotations

import html
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from graphviz_torch import Graph, find, record, trace
from graphviz_torch.export import to_mermaid
from graphviz_torch.graph import Edge, Finding, Node, TensorMeta
from graphviz_torch.integrations.command.main import main
from tests.support.models import MLP, Transformer, chain, dense_block, tokens, worked_example
from tests.support.recorded import trained

F32 = (TensorMeta((3,), "float32", "cpu"),)
# What Mermaid's lexer takes between quotes when entities are decoded later: no quote, no line end.
_LABEL = r'"(?P<label>[^"\n]*)"'
_GRAMMAR = {
    "head": r"flowchart (TB|BT|LR|RL)",
    "subgraph": rf"subgraph (?P<id>c\d+)\[{_LABEL}\]",
    "end": r"end",
    "node": rf"(?P<id>\w+)(\(\[|\[\(|\(|\{{\{{|\[\[|\[){_LABEL}(\]\)|\)\]|\)|\}}\}}|\]\]|\])",
    "edge": rf"(?P<a>\w+) (-->|-\.->|-\.-)(\|{_LABEL}\|)? (?P<b>\w+)",
    "class_def": r"classDef [a-z]+ fill:#[0-9a-f]{6},stroke:#[0-9a-f]{6},color:#[0-9a-f]{6}",
    "class": r"class \w+(,\w+)* [a-z]+",
    "style": r"style (?P<id>\w+) [a-z-]+:[#\w ]+(,[a-z-]+:[#\w ]+)*",
}


@dataclass
class Chart:
    """The contents of a Mermaid text."""

    nodes: dict[str, list[str]] = field(default_factory=dict)  # id -> lines
    edges: list[tuple[str, str]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # of edges
    frames: dict[str, str] = field(default_factory=dict)  # title by id
    inside: dict[str, tuple[str, ...]] = field(default_factory=dict)  # node -> frames around it
    styles: list[str] = field(default_factory=list)


def decoded(label: str) -> list[str]:
    """The lines of a label: entities are HTML's, with # for &."""
    label = label.replace("\u200b", "")  # a mark of no width parts what Mermaid would read
    parts = label.split("<br/>")
    assert not any(set("<>&`{}|;\\") & set(re.sub(r"#\d+;", "", part)) for part in parts)
    return [html.unescape(re.sub(r"#(\d+);", r"&#\1;", part)) for part in parts]


def read(text: str) -> Chart:
    chart, around = Chart(), list[str]()
    lines = text.splitlines()
    assert text.endswith("\n")
    for at, line in enumerate(lines):
        found = [(k, m) for k, rule in _GRAMMAR.items() if (m := re.fullmatch(rule, line))]
        assert found, f"line {at} is no Mermaid that this test knows: {line}"
        kind, match = found[0]
        assert (kind == "head") == (at == 0)
        if kind == "subgraph":
            chart.frames[match["id"]] = decoded(match["label"])[0]
            around.append(match["id"])
        elif kind == "end":
            around.pop()
        elif kind == "node":
            assert match["id"] not in chart.nodes
            chart.nodes[match["id"]] = decoded(match["label"])
            chart.inside[match["id"]] = tuple(around)
        elif kind == "edge":
            chart.edges.append((match["a"], match["b"]))
            chart.labels += decoded(match["label"]) if match["label"] else []
        elif kind == "style":
            chart.styles.append(match["id"])
    assert not around
    assert {end for edge in chart.edges for end in edge} <= chart.nodes.keys()
    return chart


def test_every_node_and_edge_of_a_small_graph_is_in_the_chart() -> None:
    graph = trace(worked_example()["y"])
    chart = read(to_mermaid(graph, explain=False))
    assert sorted(chart.nodes) == sorted(f"n{node.id}" for node in graph.nodes)
    assert Counter(chart.edges) == Counter((f"n{e.source}", f"n{e.target}") for e in graph.edges)
    for node in graph.nodes:
        assert f"f32{list(node.outputs[0].shape)}" in chart.nodes[f"n{node.id}"]  # type: ignore[union-attr]


def test_modules_are_subgraphs_and_parameters_stand_inside_operations() -> None:
    graph = trained(Transformer(1), tokens())
    chart = read(to_mermaid(graph, depth=9, detail="full"))
    for node in graph.nodes:
        lines = chart.nodes.get(f"n{node.id}")
        if lines is None or not node.scope or node.leaf:
            continue
        titles = ".".join(chart.frames[frame] for frame in chart.inside[f"n{node.id}"])
        own = node.scope.rpartition(".")[2]
        assert own in titles or any(own in line for line in lines)
    assert any("weight f32" in line for lines in chart.nodes.values() for line in lines)


@pytest.mark.parametrize(
    "text",
    [
        'a "quoted" name',
        "a;b#quot;c",
        "</script><img src=x onerror=alert(1)>",
        "`markdown` **bold**",
        "end",
        "x\ny\r\x00\u2028\u2029",
        "style n0 fill:#123;",
        "click n0 href javascript:alert(1)",
        "%%{init: {}}%%",
        "ﬂ°°lt¶ß",
        "a\u200bb",
        "|pipe| --> n9",
        "é 名前 🙂",
    ],
)
def test_a_hostile_name_is_only_ever_a_text(text: str) -> None:
    nodes = (
        Node(0, "AccumulateGrad", F32, text, leaf="parameter", note=text),
        Node(1, text, F32, "y", text, module=text, scope="m", where=text, module_class=text),
        Node(2, "SumBackward0", F32, operation="sum"),
    )
    graph = Graph(nodes, (Edge(0, 1), Edge(1, 2)), ((2, 0),))
    about = [Finding("made-up", "error", text, nodes=(1,))]
    written = to_mermaid(graph, findings=about, parameters="nodes", limit=10)
    chart = read(written)
    assert set(chart.nodes) == {"n0", "n1", "n2", "note"}
    assert chart.edges == [("n0", "n1"), ("n1", "n2")]
    plain = "".join(c if c >= " " else chr(0x2400 + ord(c)) for c in text)
    plain = plain.translate(dict.fromkeys((0x2028, 0x2029), "\ufffd"))
    assert plain in chart.nodes["n0"][0]
    assert not re.search(r"style.*:\S*#|classDef.*:\S*#.*;", "\n".join(written.splitlines()[:4]))


@pytest.mark.parametrize("text", ["$$x^2$$", "folder\\name", "fa:fa-car", "far:fa-bell"])
def test_what_mermaid_looks_for_in_a_name_is_parted(text: str) -> None:
    """Mermaid decodes a label, and then reads mathematics, line ends and icons in it."""
    written = to_mermaid(Graph((Node(0, "SumBackward0", F32, text),), (), ((0, 0),)))
    mermaid_reads = html.unescape(re.sub(r"#(\d+);", r"&#\1;", written))
    assert not re.search(r"\$\$|\\n|(fa[bklrs]?):fa-[\w-]+", mermaid_reads)
    assert text in read(written).nodes["n0"]


def test_a_frames_title_is_one_line_and_its_figures_stand_in_a_node() -> None:
    """Mermaid leaves room for one line above the nodes of a subgraph."""
    written = to_mermaid(trained(Transformer(12), tokens()), detail="gradients")
    titles = re.findall(r'subgraph \w+\["(.*)"\]', written)
    assert titles
    assert not any("<br/>" in title for title in titles)
    figures = [lines for name, lines in read(written).nodes.items() if name.startswith("t")]
    assert any(line.startswith("all 12: ") for lines in figures for line in lines)


def test_an_edge_that_is_not_drawn_is_named_at_both_its_ends() -> None:
    chart = read(to_mermaid(trace(dense_block(40), names={}), detail="full"))
    for name, lines in chart.nodes.items():
        if name.startswith("from_"):
            far = lines[0].removeprefix("from ").split(", ")[0].rpartition("#")[2]
            assert f"to_n{far}" in chart.nodes
    assert any(name.startswith("from_") for name in chart.nodes)


@pytest.mark.parametrize("name", ["chain", "transformer"])
def test_a_large_graph_stays_within_what_is_drawn_without_being_set_up(name: str) -> None:
    made = {
        "chain": lambda: trace(chain(3000), names={}),
        "transformer": lambda: trace(Transformer(40)(tokens()).sum(), names={}),
    }[name]()
    text = to_mermaid(made)
    chart = read(text)
    assert len(text) <= 50_000
    assert len(chart.edges) <= 500
    assert f"{len(made.nodes):,} nodes" in chart.nodes["note"][-1]


def test_findings_differences_and_colours_are_shown() -> None:
    graph = trained(MLP(), torch.ones(2, 4))
    about = Finding("made-up", "warning", "look here", nodes=(0,))
    text = to_mermaid(graph, findings=[about], marks={2: "added"}, color_by="gradient")
    chart = read(text)
    assert "⚠ look here" in chart.nodes["note"]
    said = [line for lines in chart.nodes.values() for line in lines]
    assert "⚠ made-up" in said
    assert any(line.startswith("+ added") for line in said)
    assert len(chart.styles) > 2
    assert read(to_mermaid(graph, theme="auto")).styles == []


def test_only_what_was_removed_or_has_no_value_for_its_colour_has_a_dashed_outline() -> None:
    graph = trace((torch.ones(3, requires_grad=True) * 2).sum())
    timed = graph.annotate(seconds={2: 0.5})
    for made, options, dashed in (
        (graph, {}, 0),
        (graph, {"marks": {1: "added"}}, 0),
        (graph, {"marks": {1: "removed"}}, 1),
        (graph, {"marks": {1: "removed", 2: "added"}}, 1),
        (timed, {"color_by": "time"}, len(graph.nodes) - 1),
    ):
        text = to_mermaid(made, **options)  # type: ignore[arg-type]
        assert text.count("stroke-dasharray:5 4") == dashed
        assert text.count("stroke-width:3px") == len(options.get("marks", ()))


def test_a_cut_and_an_operation_that_failed_are_drawn() -> None:
    with record() as recording:
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        ((y.detach() * x) + y).sum().backward()
    chart = read(to_mermaid(recording, findings=find(recording)))
    assert any("detach()" in label for label in chart.labels)
    recording = record()
    with suppress(RuntimeError), recording:
        x = torch.ones(3, requires_grad=True) * 2
        _ = x + torch.ones(4)
    chart = read(to_mermaid(recording))
    assert "✖ RuntimeError" in chart.nodes["failed"]
    assert any(b == "failed" for _, b in chart.edges)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"direction": "up"}, ValueError, "direction='up' is unknown"),
        ({"limit": 0}, ValueError, "limit=0"),
        ({"colour_by": "time"}, TypeError, "Did you mean 'color_by'"),
        ({"module": "nowhere"}, ValueError, "module='nowhere'"),
    ],
)
def test_a_wrong_option_is_told(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        to_mermaid(trace(worked_example()["y"]), **options)


def test_the_command_prints_what_the_function_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = trace(worked_example()["y"])
    file = graph.save(tmp_path / "step.json")
    assert main(["export", "--to", "mermaid", str(file), "--direction", "LR", "--no-findings"]) == 0
    assert capsys.readouterr().out == to_mermaid(graph, direction="LR")
