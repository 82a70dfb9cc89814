"""Test the colors of `color_by`, and the scale that explains them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import torch

from graphviz_torch import record
from graphviz_torch.export import to_dot
from graphviz_torch.graph import (
    Edge,
    GradientStats,
    Graph,
    Node,
    SavedTensor,
)
from graphviz_torch.render.dot.layout import layout
from graphviz_torch.render.style import CATEGORIES, NONFINITE, ON_STRONG, SCALE
from tests.support.drawn import F32, Drawn, colors, repeated, texts, two


@pytest.mark.parametrize("color_by", ["device", "dtype", "module", "gradient", "time", "saved"])
def test_color_by_fills_nodes_and_shows_its_scale(color_by: Any) -> None:
    stats = GradientStats(2.0, 2.0, 1.0, 0.0)
    saved = (SavedTensor("self", F32, 12),)
    graph = two(grad_outputs=(stats,), seconds=1e-3, saved=saved, module="fc")
    dot = to_dot(graph, color_by=color_by)
    shown = "".join(ET.fromstring(layout(dot)).itertext())
    words = {
        "device": "cpu",
        "dtype": "f32",
        "module": "fc",
        "gradient": "gradient norm",
        "time": "1 ms",
        "saved": "12 B",
    }
    assert words[color_by] in shown
    assert Drawn(dot).nodes["1"]["fillcolor"] in {p[0] for p in (*CATEGORIES, *SCALE)}


def test_color_by_takes_a_function_of_a_node() -> None:
    nodes = [Node(i, "MulBackward0", (F32,), operation="mul", order=i) for i in range(5)]
    graph = Graph(tuple(nodes), tuple(Edge(i, i + 1) for i in range(4)), ((4, 0),))

    def centred(node: Node) -> float | None:
        return None if node.id == 3 else node.id - 2

    drawn = Drawn(to_dot(graph, color_by=centred))
    fills = [drawn.nodes[str(i)].get("fillcolor") for i in range(5)]
    assert fills[0] == SCALE[0][0]
    assert fills[4] == SCALE[-1][0]
    assert fills[2] == SCALE[len(SCALE) // 2][0]
    assert "dashed" in drawn.nodes["3"]["style"]
    svg = layout(to_dot(graph, color_by=centred))
    assert "centred -2" in texts(svg, "0")
    assert "no value" in "".join(ET.fromstring(svg).itertext())
    unnamed = to_dot(graph, color_by=lambda node: 10.0**node.id)
    assert "<B>value</B>" in unnamed
    assert Drawn(unnamed).nodes["2"]["fillcolor"] == SCALE[len(SCALE) // 2][0]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda node: [1], TypeError, "returned [1] for node 0 (mul). Return a number"),
        (lambda node: None, ValueError, "The function returned None for every node."),
    ],
)
def test_a_function_that_gives_no_number_and_no_text_is_refused(
    function: Any, error: type[Exception], message: str
) -> None:
    graph = Graph((Node(0, "MulBackward0", (F32,), operation="mul"),), (), ((0, 0),))
    with pytest.raises(error, match=re.escape(message)):
        to_dot(graph, color_by=function)


def test_a_folded_block_is_coloured_by_the_module_that_is_drawn_for_it() -> None:
    dot = to_dot(repeated(4), color_by="module", fold=True, depth=1)
    box = next(line for line in dot.splitlines() if "box3d" in line)
    assert any(f'fillcolor="{pair[0]}"' in box for pair in CATEGORIES[1:])


def test_color_by_trainable_tells_frozen_modules_from_those_that_learn() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)), torch.nn.ReLU())
    model[1].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    graph = recording.graph
    dot = to_dot(graph, color_by="trainable", depth=9)
    drawn = Drawn(dot)
    fills: dict[str, set[str | None]] = {}
    for node in graph.nodes:
        if str(node.id) in drawn.nodes:
            fills.setdefault(node.module, set()).add(drawn.nodes[str(node.id)].get("fillcolor"))
    assert fills["0"] == fills["3"] != fills["1"]
    assert all(len(fills[name]) == 1 for name in "0123")
    assert len({*fills["0"], *fills["1"], *fills["2"], *fills["4"]}) == 4
    assert fills["4"] == fills[""] == {CATEGORIES[0][0]}  # they have no parameters
    for name in ("trainable", "frozen", "partly frozen"):
        assert f">{name}</FONT>" in dot


def test_a_gradient_that_is_not_finite_is_outside_the_scale() -> None:
    graph = two(grad_outputs=(GradientStats(1.0, 1.0, 1.0, 0.0, nan=1),))
    svg = layout(to_dot(graph, color_by="gradient"))
    assert NONFINITE[0] in colors(svg, "1")


def test_the_strongest_value_has_the_strongest_fill_and_text_that_can_be_read() -> None:
    nodes = [Node(i, "MulBackward0", (F32,), operation="mul", seconds=10.0**-i) for i in range(5)]
    graph = Graph(tuple(nodes), tuple(Edge(i, i + 1) for i in range(4)), ((4, 0),))
    svg = layout(to_dot(graph, color_by="time"))
    assert {SCALE[-1][0], ON_STRONG[0]} <= colors(svg, "0")
    assert SCALE[0][0] in colors(svg, "4")
