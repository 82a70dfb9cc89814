"""Test the estimated size of a picture, which decides how many groups are open."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import draw_graph, record
from graphviz_torch.render.dot.dot import to_dot
from graphviz_torch.render.dot.layout import layout
from graphviz_torch.render.drawing.picture_size import picture_size
from graphviz_torch.render.drawing.steps import draw


class Branches(nn.Module):
    """Several linear layers side by side, whose results are added."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(4, 4 + i) for i in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([branch(x).sum() for branch in self.branches]).sum()


class Masked(nn.Module):
    """A block whose second layer reads a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.second(self.first(x).relu() * mask).tanh()


class Around(nn.Module):
    """A model with a masked block inside."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Masked()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.block(x, mask).sum()


def graphviz_size(dot: str) -> tuple[float, float]:
    """Return the width and height in points that Graphviz gives a drawing without scaling."""
    svg = layout(dot.replace('size="10.5,1000"', ""), "svg").decode()
    found = re.search(r'<svg width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    assert found is not None
    return float(found[1]), float(found[2])


@pytest.mark.parametrize("count", [1, 3, 6])
def test_the_estimate_is_nearly_the_size_that_graphviz_gives_the_picture(count: int) -> None:
    model = Branches(count)
    with record(model) as recording:
        model(torch.ones(2, 4)).backward()
    drawing = draw(recording.graph, {"limit": 99, "findings": [], "fold": False})
    width, height = graphviz_size(to_dot(recording.graph, limit=99, findings=[], fold=False))
    estimated = picture_size(drawing)
    assert height == pytest.approx(estimated[1], rel=0.15)
    if count > 1:  # the legend is wider than one branch
        assert width == pytest.approx(estimated[0], rel=0.15)


def test_a_picture_that_is_too_wide_for_a_page_is_narrowed_by_graphviz() -> None:
    model = Branches(12)
    with record(model) as recording:
        model(torch.ones(2, 4)).backward()
    default, asked = to_dot(recording), to_dot(recording, fold=False)
    assert 'size="10.5,1000"' in default
    assert 'size="10.5,1000"' not in asked  # the caller sets the amount of detail
    svg = layout(default, "svg").decode()
    assert float(re.findall(r'<svg width="([\d.]+)pt"', svg)[0]) <= 10.5 * 72


def stub_lines(model: nn.Module, *inputs: Any) -> list[str]:
    """Return the DOT lines of data of a recorded step."""
    with record(model) as recording:
        model(*inputs).sum().backward()
    lines = str(draw_graph(recording).source).splitlines()
    return [line.strip() for line in lines if "untracked_" in line and "label" in line]


def test_data_that_enters_the_middle_of_a_module_is_in_its_frame() -> None:
    lines = stub_lines(Around(), torch.ones(2, 4), torch.ones(4))
    (x,) = [line for line in lines if "<B>x</B>" in line]
    (mask,) = [line for line in lines if "<B>mask</B>" in line]
    assert "subgraph cluster" not in x
    assert "subgraph cluster" in mask


class Many(nn.Module):
    """A module that reads four tensors in one function."""

    def forward(self, w: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.cat([w, a, b, c])


def test_three_data_that_enter_one_box_are_a_list() -> None:
    w = torch.ones(2, requires_grad=True)
    (line,) = stub_lines(Many(), w, torch.ones(3), torch.ones(4), torch.ones(5))
    names = re.findall(r"<B>(.*?)</B> <FONT[^>]*>(.*?)</FONT>", line)
    assert names == [("a", "f32[3]"), ("b", "f32[4]"), ("c", "f32[5]")]
