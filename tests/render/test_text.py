"""Compare the text of graphs with files that a person has checked."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from graphviz_torch import record, simulate_accelerator, to_text, trace
from graphviz_torch.export import to_dot
from graphviz_torch.graph import Cut, Finding, Graph, Node, TensorMeta
from graphviz_torch.render.labels import TIMES
from graphviz_torch.render.resolve import graph_and_findings
from tests.support.drawn import F32
from tests.support.models import MLP, worked_example
from tests.support.zoo import gan

GOLDEN = Path(__file__).parents[1] / "golden"


def worked() -> Graph:
    example = worked_example()
    return trace(example["y"], names=example)


def mlp() -> Graph:
    torch.manual_seed(0)
    model = MLP()
    with record(model, gradients=False) as recording:
        output = model(torch.ones(1, 4))
        output.sum()
    ids = range(len(recording.graph.nodes))
    return recording.graph.annotate(where=dict.fromkeys(ids, ""), saved=dict.fromkeys(ids, ()))


def there_and_back() -> Graph:
    with simulate_accelerator() as (device,):
        x = torch.ones(3, requires_grad=True)
        y = (x.to(device) * 2).sum().cpu()
        return trace(y, names={"x": x, "y": y})


GRAPHS = {"worked_example": worked, "mlp": mlp, "there_and_back": there_and_back}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("wide", [False, True])
def test_the_text_is_as_a_person_read_it(name: str, wide: bool) -> None:
    file = GOLDEN / f"{name}{'_wide' * wide}.txt"
    assert to_text(GRAPHS[name](), wide=wide) == file.read_text()


def decoder(layers: int) -> Graph:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoder(layer, layers), nn.Linear(8, 1))
    with record(model) as recording:
        model(torch.ones(2, 3, 4)).sum().backward()
    return recording.graph


def test_of_blocks_that_are_alike_the_first_is_listed() -> None:
    few, many = (to_text(decoder(layers), findings=None).splitlines() for layers in (3, 9))
    assert len(few) == len(many)
    assert any(line.strip() == f"layers.0 … 8 {TIMES} 9 · TransformerEncoderLayer" for line in many)
    graph = decoder(9)
    listed = [int(line[:3]) for line in many[3:] if line[:3].strip().isdigit()]
    assert len(set(listed)) == len(listed)
    inside = [node for node in graph.nodes if re.match(r"1\.layers\.[1-8]\b", node.module)]
    assert len(listed) == len(graph.nodes) - len(inside)
    wide = to_text(graph, findings=None, wide=True).split("\n\n")[1].splitlines()
    assert [int(line.split()[0]) for line in wide[1:]] == [node.id for node in graph.nodes]


def test_a_finding_in_a_block_that_is_not_listed_stands_above_the_one_that_is() -> None:
    graph = decoder(4)
    [node] = [n.id for n in graph.nodes if n.label == "1.layers.2.linear1.weight"]
    text = to_text(graph, findings=[Finding("made-up", "warning", "x", nodes=(node,))])
    [line] = [line for line in text.splitlines() if "TransformerEncoderLayer" in line]
    assert line.endswith(f"layers.0 … 3 {TIMES} 4 · TransformerEncoderLayer  ⚠ made-up")


def test_a_chain_of_one_operation_is_its_ends() -> None:
    y = torch.ones(3, requires_grad=True)
    for _ in range(300):
        y = y.sin()
    text = to_text(y.sum())
    assert f"sin {TIMES} 300" in text
    assert len(text.splitlines()) < 12


def test_both_losses_of_a_step_have_their_rows() -> None:
    graph, _ = graph_and_findings(gan())
    lines = to_text(gan()).splitlines()
    for _, title in graph.segments:
        assert any(line.strip().startswith(title) for line in lines)
    assert f"{len(graph.nodes)} nodes" in lines[0]
    wide = to_text(gan(), wide=True).splitlines()
    assert wide[2].split()[-1] == "graph"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    text = to_text(decoder(2))
    assert max(map(len, text.splitlines())) <= width
    assert ("gradient" in text.partition("Identical blocks")[0]) == (width > 40)
    left_out = re.search(r"Hidden at \d+ columns: ([^;]*)", " ".join(text.split()))
    assert left_out is not None
    assert ("saved" in left_out[1]) == (width < 120)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_dot_text_is_as_it_was_when_its_picture_was_looked_at(name: str) -> None:
    assert to_dot(GRAPHS[name]()) == (GOLDEN / f"{name}.dot").read_text()


def test_the_same_model_gives_the_same_text_every_time() -> None:
    assert to_text(mlp()) == to_text(mlp())


def test_gradients_values_and_bytes_stand_in_columns_of_their_own() -> None:
    with record() as recording:
        worked_example()["y"].backward()
    text = to_text(recording.graph, wide=True)
    assert "[2, 2.667, 3.333]" in text
    assert "[3, 4, 5]" in text
    assert re.search(r"^id +operation +output +inputs +value +gradient +time", text, re.M)


def test_a_hostile_name_stays_on_its_line() -> None:
    meta = TensorMeta((), "float32", "cpu")
    node = Node(0, "AccumulateGrad", (meta,), 'a\nb"\x1b[31m☃' + "x" * 90, leaf="tensor")
    lines = to_text(Graph((node,), (), ((0, 0),))).splitlines()
    assert len(lines) == 6
    assert lines[3].startswith(r' 0  a\nb"\x1b[31m☃x')
    assert not {"\n", "\x1b"} & {*"".join(lines)}
    assert "…" in lines[3]


def test_an_empty_graph_has_a_text() -> None:
    assert to_text(Graph(())) == "0 nodes, 0 edges, 0 outputs\n"


def test_cuts_stand_in_a_table_with_the_nodes_on_both_sides() -> None:
    rows = tuple(Node(i, "SinBackward0", (F32,), operation="sin") for i in range(3))
    cuts = (
        Cut("data", F32, before=0, after=(1, 2), where="vq.py:8", label="z"),
        Cut("argmin", F32, after=(2,), where="vq.py:9"),
    )
    text = to_text(Graph(rows, cuts=cuts))
    head, *told = [line.split() for line in text.partition("cut ")[2].splitlines()]
    assert told == [
        ["data", "z", "f32[3]", "0", "1,", "2", "vq.py:8"],
        ["argmin", "f32[3]", "not", "in", "this", "graph", "2", "vq.py:9"],
    ]
    assert head == ["of", "tensor", "made", "by", "used", "by", "where"]
