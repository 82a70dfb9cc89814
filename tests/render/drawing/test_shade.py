"""Test the fill colors of `color_by`, their explanation and their scale."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from graphviz_torch import Graph, record, trace
from graphviz_torch.graph import Edge, Node, TensorMeta
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.drawing.values import Shading
from graphviz_torch.render.style import CATEGORIES, COLORS, NONFINITE, ON_STRONG, SCALE

F32 = (TensorMeta((3,), "float32", "cpu"),)


def shaded(values: list[float | None]) -> Shading:
    """A chain of as many nodes, coloured by these values."""
    nodes = [Node(i, "MulBackward0", F32, operation="mul") for i in range(len(values))]
    edges = [Edge(i, i + 1) for i in range(len(values) - 1)]
    given: Callable[[Node], float | None] = lambda node: values[node.id]  # noqa: E731
    return draw(Graph(tuple(nodes), tuple(edges)), {"color_by": given}).shading


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1.0, 10.0, 100.0], ["1", "10", "100"]),  # each step is so many times the last
        ([-2.0, 0.0, 4.0], ["-2", "1", "4"]),  # below zero there are no such steps
        ([5.0, 5.0], ["5", "5", "5"]),
    ],
)
def test_the_scale_tells_its_lowest_its_middle_and_its_highest_value(
    values: list[float | None], texts: list[str]
) -> None:
    scale = shaded(values).scale
    assert [pair for pair, _ in scale] == list(SCALE)
    assert [text for _, text in scale if text] == texts
    assert [scale[i][1] for i in (0, len(SCALE) // 2, len(SCALE) - 1)] == texts


def test_a_larger_value_has_a_stronger_fill_and_text_to_be_read_on_it() -> None:
    shading = shaded([2.0**i for i in range(len(SCALE))])
    assert [shading.fills[i] for i in range(len(SCALE))] == list(SCALE)
    inks = [shading.inks.get(i) for i in range(len(SCALE))]
    assert inks[:2] == [None, None]
    assert {inks[2], inks[-1]} == {COLORS["ink"], ON_STRONG}


def test_what_is_not_finite_or_has_no_value_stands_outside_the_scale() -> None:
    shading = shaded([1.0, math.nan, None, 3.0, math.inf])
    assert shading.fills[1] == shading.fills[4] == NONFINITE
    assert 2 in shading.fills
    assert shading.fills[2] is None
    assert [text for _, text in shading.scale[-2:]] == ["NaN or Inf", "no value"]
    assert shading.values[1].endswith("not finite")


def test_a_function_that_returns_texts_colours_by_category() -> None:
    names = ["mul", "add", None, "mul", ""]
    nodes = tuple(Node(i, "MulBackward0", F32, operation="mul") for i in range(len(names)))
    graph = Graph(nodes, tuple(Edge(i, i + 1) for i in range(len(names) - 1)))

    def kind_of(node: Node) -> str | None:
        return names[node.id]

    shading = draw(graph, {"color_by": kind_of}).shading
    assert {text: fill for fill, text in shading.scale} == {
        "add": shading.fills[1],
        "mul": shading.fills[0],
    }
    assert shading.title == "kind_of"
    assert shading.fills[0] == shading.fills[3] != shading.fills[1]
    assert shading.fills[2] == shading.fills[4] == CATEGORIES[0]  # grey: no category


@pytest.mark.parametrize("values", [["mul", 1.0], [1.0, "2"], [[1], None], ["a", object]])
def test_a_function_that_returns_anything_else_is_told_what_to_return(values: list[object]) -> None:
    nodes = tuple(Node(i, "MulBackward0", F32, operation="mul") for i in range(len(values)))
    with pytest.raises(TypeError, match=r"color_by: value returned .* for node \d \(mul\)."):
        draw(Graph(nodes, ()), {"color_by": lambda node: values[node.id]})  # type: ignore[typeddict-item, return-value]


class Body(nn.Module):
    """A model of two layers, the second of which is frozen."""

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x))
        return y


def closed(color_by: str) -> tuple[Graph, Shading, list[int]]:
    """Blocks that are drawn closed, and what is drawn as itself."""
    model = nn.Sequential(nn.Sequential(Body(), nn.ReLU(), Body(frozen=False)))
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    drawn = draw(recording.graph, {"color_by": color_by, "depth": 1, "fold": False})
    return recording.graph, drawn.shading, drawn.boxes


def test_a_closed_block_says_its_value_and_a_node_that_says_it_anyway_does_not() -> None:
    graph, shading, boxes = closed("gradient")
    assert boxes
    assert set(shading.values) == {~number for number in boxes}
    norms = [s.norm for node in graph.nodes for s in node.grad_outputs if s is not None]
    for text in shading.values.values():
        said = float(text.removeprefix("grad norm up to "))
        assert any(said == pytest.approx(norm, rel=1e-3) for norm in norms)


def test_a_closed_block_of_frozen_and_learning_layers_is_partly_frozen() -> None:
    _, shading, boxes = closed("trainable")
    names = dict(shading.scale)
    found = [names.get(shading.fills[~number], "") for number in boxes]
    assert sorted(found) == ["", "partly frozen", "trainable"]  # ReLU has no parameters


def test_a_leaf_that_is_a_node_has_the_colour_of_its_own_name() -> None:
    nodes = (
        Node(0, "AccumulateGrad", F32, "x", leaf="tensor"),
        Node(1, "ToCopyBackward0", (F32[0]._replace(device="cuda:0"),), operation="to"),
    )
    shading = draw(Graph(nodes, (Edge(0, 1),)), {"color_by": "device"}).shading
    assert [name for _, name in shading.scale] == ["cpu", "cuda:0"]
    assert shading.fills == {0: shading.scale[0][0], 1: shading.scale[1][0]}
    assert set(shading.fills.values()) <= set(CATEGORIES)


def test_the_scale_of_influence_goes_from_nothing_to_all_whatever_is_drawn() -> None:
    graph = trace(torch.ones(2, requires_grad=True).exp().sin().sum())
    ids = {node.operation: node.id for node in graph.nodes}
    graph = graph.annotate(influence={ids["exp"]: 0.0, ids["sin"]: 0.25})
    shading = draw(graph, {}).shading
    assert shading is not None
    assert shading.fills[ids["exp"]] == SCALE[0]
    assert shading.fills[ids["sin"]] == SCALE[len(SCALE) // 4]
    assert shading.fills[ids["sum"]] is None
    words = [text for _, text in shading.scale if text]
    assert words == ["0%", "50%", "100%", "not reached in the module"]
