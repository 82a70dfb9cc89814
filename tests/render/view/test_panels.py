"""Test the positions of elements in panels of 320 to 3,840 CSS pixels."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import pytest
import torch
from playwright.sync_api import FloatRect, Page
from torch import nn

from graphviz_torch import record, trace
from graphviz_torch.graph import Finding, Graph
from tests.support.models import gpt2, tokens
from tests.support.viewed import Open, mlp, worked
from tests.support.zoo import step

pytest_plugins = ["tests.support.view_fixtures"]

SIZES = [(320, 640), (590, 500), (1280, 800), (3840, 2000)]
sizes = pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))


class Box(NamedTuple):
    """A rectangle of the page, in CSS pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, other: Box, slack: float = 1) -> bool:
        return (
            self.left - slack <= other.left
            and self.top - slack <= other.top
            and other.right <= self.right + slack
            and other.bottom <= self.bottom + slack
        )

    def apart(self, other: Box, slack: float = 1) -> bool:
        return (
            self.right <= other.left + slack
            or other.right <= self.left + slack
            or self.bottom <= other.top + slack
            or other.bottom <= self.top + slack
        )


def box(page: Page, selector: str) -> Box:
    found = page.locator(selector).first.bounding_box()
    assert found is not None, selector
    return as_box(found)


def as_box(found: FloatRect) -> Box:
    x, y, width, height = (found[side] for side in ("x", "y", "width", "height"))
    return Box(x, y, x + width, y + height)


def boxes(page: Page, selector: str) -> list[Box]:
    found = [each.bounding_box() for each in page.locator(selector).all()]
    return [as_box(each) for each in found if each is not None]


@sizes
def test_the_whole_graph_stands_in_the_middle(opened: Open, size: tuple[int, int]) -> None:
    page = opened(worked(), size=size)
    page.get_by_role("button", name="See all").click()
    canvas, cards = box(page, "svg.drawing"), boxes(page, ".card > .form, .ground")
    assert all(canvas.holds(card) for card in cards)
    left = min(card.left for card in cards) - canvas.left
    right = canvas.right - max(card.right for card in cards)
    above = min(card.top for card in cards) - canvas.top
    below = canvas.bottom - max(card.bottom for card in cards)
    assert left == pytest.approx(right, abs=4)
    assert above == pytest.approx(below, abs=4)


@sizes
@pytest.mark.parametrize("model", ["transformer", "columns"])
def test_it_opens_with_its_output_in_sight_and_legible(
    opened: Open, size: tuple[int, int], model: str, request: pytest.FixtureRequest
) -> None:
    graph: Graph = request.getfixturevalue(model)
    page = opened(graph, size=size)
    assert box(page, "svg.drawing").holds(box(page, ".card.output > .form"))
    mono = page.locator(".card.output .mono").first.bounding_box()
    assert mono is not None
    assert mono["height"] > 8


@pytest.fixture(scope="module")
def columns() -> Graph:
    """GPT-2: its second and third column begin above its first."""
    return step(gpt2(12), tokens(), loss=lambda out: out.loss, labels=tokens()).graph


@sizes
def test_nothing_overlaps_and_nothing_is_cut_off(
    opened: Open, size: tuple[int, int], transformer: Graph
) -> None:
    page = opened(transformer, size=size)
    page.locator(".card.output").click()
    page.wait_for_selector(".card.selected")
    parts = [".bar", ".crumbs", "svg.drawing", ".panel", ".legend", ".player"]
    parts = [name for name in parts if page.locator(name).is_visible()]  # a phone has no legend
    found = {name: box(page, name) for name in parts}
    if page.locator(".minimap").is_visible():
        found[".minimap"] = box(page, ".minimap")
    view = box(page, ".view")
    assert view == Box(0, 0, *size)
    assert all(view.holds(each) for each in found.values())
    overlaps = [pair for pair in combinations(found, 2) if not found[pair[0]].apart(found[pair[1]])]
    assert overlaps == []
    for name in {".bar", ".legend", ".player", ".panel"} & found.keys():
        assert page.locator(name).evaluate("one => one.scrollWidth - one.clientWidth") == 0, name
    for button in boxes(page, ".bar button:visible"):
        assert found[".bar"].holds(button)


@sizes
def test_details_never_cover_their_node(opened: Open, size: tuple[int, int]) -> None:
    page = opened(mlp(), size=size)
    page.get_by_role("button", name="See all").click()
    items = [card.get_attribute("data-item") for card in page.locator(".card").all()]
    for item in items:
        page.get_by_role("button", name="See all").click()  # what is out of sight is not drawn
        page.evaluate(
            "item => document.querySelector('#view').firstChild.shadowRoot"
            ".querySelector(`.card[data-item='${item}']`).dispatchEvent(new MouseEvent('click', "
            "{bubbles: true}))",
            item,
        )
        page.wait_for_selector(f'.card.selected[data-item="{item}"]')
        selected = box(page, ".card.selected > .form")
        assert box(page, "svg.drawing").holds(selected)
        assert box(page, ".panel").apart(selected)


@pytest.mark.parametrize("size", SIZES[:2], ids=lambda size: str(size[0]))
def test_a_narrow_panel_gives_its_room_back(opened: Open, size: tuple[int, int]) -> None:
    page = opened(worked(), size=size)
    before = box(page, "svg.drawing")
    page.locator(".card.output").click()
    page.wait_for_selector(".view.selecting")
    assert box(page, "svg.drawing").bottom < before.bottom - 50
    page.keyboard.press("Escape")
    page.wait_for_selector(".view:not(.selecting)")
    assert box(page, "svg.drawing") == before
    assert not page.locator(".panel").is_visible()


def test_a_panel_that_changes_its_width_keeps_the_graph_in_the_middle(opened: Open) -> None:
    page = opened(worked())
    for width in (590, 320, 1000):
        page.set_viewport_size({"width": width, "height": 800})
        narrow = ".view.narrow" if width < 700 else ".view:not(.narrow)"
        page.wait_for_selector(narrow)
        page.wait_for_function(
            """() => {
              const view = document.querySelector("#view").firstChild.shadowRoot;
              const middle = (one) => {
                const box = one.getBoundingClientRect();
                return box.left + box.width / 2;
              };
              const card = view.querySelector(".card > .form");
              return Math.abs(middle(card) - middle(view.querySelector("svg.drawing"))) < 4;
            }"""
        )


def test_a_graph_that_can_be_read_whole_opens_whole(opened: Open) -> None:
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2)]
    model = nn.Sequential(*blocks)
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    page = opened(recording.graph)
    canvas = box(page, "svg.drawing")
    assert all(canvas.holds(card) for card in boxes(page, ".card > .form"))


def test_a_graph_that_cannot_opens_at_what_is_wrong(opened: Open) -> None:
    y = torch.ones(2, requires_grad=True)
    for _ in range(400):
        y = y.tanh()
    graph = trace(y, names={})
    told = Finding("nonfinite-gradient", "error", "NaN", nodes=(397,))
    page = opened(graph, findings=[told])
    assert box(page, "svg.drawing").holds(box(page, ".card:has(.badge) > .form"))


def test_a_phone_gives_its_height_to_the_graph(opened: Open) -> None:
    page = opened(worked(), size=(320, 568))
    assert box(page, "svg.drawing").bottom - box(page, "svg.drawing").top > 0.78 * 568
    page.get_by_role("button", name="More buttons").click()
    assert page.locator(".legend").is_visible()


def test_buttons_that_have_no_room_come_out_at_a_press(opened: Open) -> None:
    page = opened(worked(), size=(320, 640))
    save = page.get_by_role("button", name="Save the picture as SVG")
    assert not save.is_visible()
    page.get_by_role("button", name="More buttons").click()
    assert box(page, ".bar").holds(
        as_box(save.bounding_box() or FloatRect(x=0, y=0, width=0, height=0))
    )
    assert page.locator(".bar").evaluate("one => one.scrollWidth - one.clientWidth") == 0
