"""The graphs of a step stand in rows, in their order, on a page: places are Graphviz's own."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
import torch

from graphviz_torch import draw_graph
from graphviz_torch.export import to_dot
from graphviz_torch.graph import Graph
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.labels import TIMES
from tests.render.drawing.test_page import size
from tests.render.drawing.test_whole import named, recorded
from tests.support.drawn import Drawn


def losses(*lengths: int) -> Any:
    """A recording of a loss for each length: a row of so many operations."""
    return recorded(*(named(f"loss_{i}", length) for i, length in enumerate(lengths)))


def frames(dot: str) -> list[tuple[float, float, float, float]]:
    """Left, bottom, right and top of each loss, by its number: of its frame, or closed box."""
    drawn = Drawn(dot)
    found = {}
    for title, cluster in drawn.clusters.items():
        if "loss_" in title:
            found[title] = tuple(map(float, cluster["bb"].split(",")))
    for name, node in drawn.nodes.items():
        if "loss_" in node["label"] and name.startswith("g"):
            (x, y), wide, high = map(float, node["pos"].split(",")), node["width"], node["height"]
            wide, high = 36 * float(wide), 36 * float(high)
            found[node["label"]] = (x - wide, y - high, x + wide, y + high)
    numbers = {int(title.split("loss_")[1].split(" ")[0]): box for title, box in found.items()}
    return [numbers[number] for number in sorted(numbers)]


STEPS = {
    "8 losses": (losses(*[5] * 8), {}),
    "15 losses": (losses(*[5] * 15), {}),
    "30 losses, each drawn": (losses(*[5] * 30), {"fold": False, "limit": 90}),
    "20 losses with a limit": (losses(*[5] * 20), {"limit": 1000, "fold": False}),
    "40 losses, none like the next": (losses(*[3 + 7 * i % 30 for i in range(40)]), {}),
    "a large loss before ten small ones": (losses(90, *[2, 3] * 5), {}),
    "a large loss among ten small ones": (losses(*[2, 3] * 3, 90, *[2, 3] * 2), {}),
    "two large losses and four small ones": (losses(40, 41, 3, 2, 3, 2), {}),
    "two large losses, each after a small one": (losses(1, 200, 1, 200), {}),
    "six losses of any size": (losses(3, 30, 12, 5, 24, 9), {}),
}


@pytest.mark.parametrize("step", STEPS)
def test_the_graphs_of_a_step_fit_a_page(step: str) -> None:
    recording, options = STEPS[step]
    drawn = draw_graph(recording, **options).pipe("svg")
    assert isinstance(drawn, bytes)
    width, height = size(drawn)
    assert max(width, height) <= 2400
    assert max(width / height, height / width) <= 4


@pytest.mark.parametrize("step", STEPS)
def test_the_graphs_of_a_step_are_read_from_left_to_right_and_from_top_to_bottom(step: str) -> None:
    recording, options = STEPS[step]
    found = frames(to_dot(recording, **options))
    assert len(found) == len(recording.graphs)
    for (_, bottom, right, _), (left2, _, _, top2) in combinations(found, 2):
        beside, below = right <= left2, bottom >= top2
        assert beside or below
        assert below or top2 > bottom  # nothing further on stands higher
    for (_, bottom, right, _), (left2, _, _, top2) in pairwise(found):
        assert right <= left2 or (bottom >= top2 and left2 == pytest.approx(found[0][0], abs=60))


def test_rows_are_read_from_the_top_where_data_flows_up() -> None:
    found = frames(to_dot(losses(*[5] * 15), direction="BT"))
    tops = [top for _, _, _, top in found]
    assert tops == sorted(tops, reverse=True)
    assert len({*tops}) > 1


def test_outputs_that_share_nothing_stand_in_rows_too() -> None:
    x = [torch.ones(2, requires_grad=True) for _ in range(30)]
    drawn = draw_graph([one.sin().cos().sum() for one in x]).pipe("svg")
    assert isinstance(drawn, bytes)
    width, height = size(drawn)
    assert max(width, height) <= 2400
    assert max(width / height, height / width) <= 4


@pytest.mark.parametrize("count", [64, 200])
def test_many_graphs_alike_are_drawn_once_with_their_number(count: int) -> None:
    whole = draw_graph(losses(*[5] * count)).graph
    drawing = draw(whole, {})
    (number,) = drawing.tree.opened
    title = f"loss_0 · a.py:1 … loss_{count - 1} · a.py:1  {TIMES}{count}"
    assert drawing.title(number) == title
    assert len(drawing.nodes) < 10
    assert drawing.contents[number].times == count
    assert len(drawing.contents[number].nodes) == len(whole.nodes)


def test_three_graphs_alike_are_drawn_each() -> None:
    drawing = draw(draw_graph(losses(*[50] * 3)).graph, {"fold": True})
    assert drawing.groups is not None
    assert drawing.tree.opened == set(drawing.groups.roots)
    assert len(drawing.tree.opened) == 3


def test_hundreds_of_graphs_that_differ_are_listed() -> None:
    drawing = draw(draw_graph(losses(*[3 + 7 * i % 150 for i in range(200)])).graph, {})
    width, height = size(_svg(drawing.graph))
    assert max(width, height) <= 2400
    assert max(width / height, height / width) <= 4
    assert len(drawing.boxes) > 50
    # Those that are not listed are in closed groups that say which they are.
    assert drawing.groups is not None
    closed = [n for n in drawing.boxes if drawing.groups.groups[n].parent is None]
    listed = [drawing.title(number).split(" … ") for number in closed]
    assert all(title.startswith("loss_") for titles in listed for title in titles)
    assert any(len(titles) == 2 for titles in listed)


def _svg(graph: Graph) -> bytes:
    drawn = draw_graph(graph).pipe("svg")
    assert isinstance(drawn, bytes)
    return drawn


def test_a_row_is_as_wide_as_the_titles_in_it() -> None:
    graphs = [named("a_name_of_forty_characters_" + "x" * 12 + str(i), 5) for i in range(9)]
    drawn = draw_graph(recorded(*graphs)).pipe("svg")
    assert isinstance(drawn, bytes)
    assert max(size(drawn)) <= 2400


def test_two_graphs_side_by_side_have_no_rows() -> None:
    dot = to_dot(losses(5, 5))
    assert "row_" not in dot
    (left, bottom, right, top), (left2, bottom2, _, top2) = frames(dot)
    assert right <= left2
    assert top == pytest.approx(top2)
    assert (left, bottom) != (left2, bottom2)


def test_the_footer_says_how_to_open_a_closed_graph() -> None:
    dot = to_dot(losses(30, 5, 20), limit=4)
    assert "loss_0 · a.py:1" in dot
    assert "module='loss_0 · a.py:1' opens one" in dot
    assert draw(draw_graph(losses(30, 5, 20)).graph, {"module": "loss_0 · a.py:1"}).nodes
