"""The text of a graph, whole, beside files that a person has read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from graphviz_torch import record, simulate_accelerator, to_dot, to_text, trace
from graphviz_torch.graph import Cut, Graph, Node, TensorMeta
from tests.support.drawn import F32
from tests.support.models import MLP, worked_example

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
    return recording.graph.annotate(source=dict.fromkeys(ids, ""), saved=dict.fromkeys(ids, ()))


def there_and_back() -> Graph:
    with simulate_accelerator() as (device,):
        x = torch.ones(3, requires_grad=True)
        y = (x.to(device) * 2).sum().cpu()
        return trace(y, names={"x": x, "y": y})


GRAPHS = {"worked_example": worked, "mlp": mlp, "there_and_back": there_and_back}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_text_is_as_a_person_read_it(name: str) -> None:
    assert to_text(GRAPHS[name]()) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", GRAPHS)
def test_the_dot_text_is_as_it_was_when_its_picture_was_looked_at(name: str) -> None:
    assert to_dot(GRAPHS[name]()) == (GOLDEN / f"{name}.dot").read_text()


def test_the_same_model_gives_the_same_text_every_time() -> None:
    assert to_text(mlp()) == to_text(mlp())


def test_gradients_values_and_bytes_stand_in_columns_of_their_own() -> None:
    with record() as recording:
        worked_example()["y"].backward()
    text = to_text(recording.graph)
    assert "[2, 2.667, 3.333]" in text
    assert re.search(r"^id +label +operation +output +inputs +gradient +time", text, re.M)


def test_a_hostile_name_stays_on_its_line() -> None:
    meta = TensorMeta((), "float32", "cpu")
    node = Node(0, "AccumulateGrad", (meta,), 'a\nb"\x1b[31m☃' + "x" * 90, leaf="tensor")
    lines = to_text(Graph((node,), (), ((0, 0),))).splitlines()
    assert len(lines) == 6
    assert lines[3].startswith(r' 0  a\nb"\x1b[31m☃xxx')
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
