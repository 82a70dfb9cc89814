"""Test the results, counts and links of the view's search."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

from graphviz_torch import record
from graphviz_torch.graph import Finding, Graph, Node
from tests.support.viewed import Open, cards, find, search, worked

pytest_plugins = ["tests.support.view_fixtures"]


def test_search_leads_into_closed_groups(opened: Open, transformer: Graph) -> None:
    page = opened(transformer)
    wanted = find(transformer, module="layers.7.norm2", leaf="")
    assert wanted.id not in cards(page)
    search(page, "module:layers.7.norm2 op:native_layer_norm")
    page.wait_for_selector(f'.card.selected[data-item="{wanted.id}"]')
    assert "layers.7.norm2" in page.locator(".panel").inner_text()
    box = page.locator(f'.card[data-item="{wanted.id}"]').bounding_box()
    assert box is not None
    assert 0 < box["x"] < 978
    assert 40 < box["y"] < 760


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        ("op:pow", lambda node: node.operation == "pow"),
        ("x", lambda node: "x" in f"{node.label} {node.name} {node.operation}".lower()),
        ("shape:3 op:add", lambda node: node.operation == "add"),
        ("device:cpu", lambda node: True),
        ("dtype:f32", lambda node: True),
        ("finding:told", lambda node: node.id == 2),
        ("nothing-like-this", lambda node: False),
    ],
)
def test_search_finds_what_a_scan_finds(
    opened: Open, words: str, holds: Callable[[Node], bool]
) -> None:
    graph = worked()
    page = opened(graph, findings=[Finding("told", "info", "a message", nodes=(2,))])
    page.locator("input[type=search]").fill(words)
    found = page.locator(".found button").evaluate_all("all => all.map(one => +one.dataset.found)")
    expected = {n.id for n in graph.nodes if holds(n)}
    # Source lines of this file hold many words: a free word may find more.
    assert expected <= set(found) if ":" not in words else expected == set(found)


def test_what_tells_two_search_results_apart_is_not_cut_off(opened: Open) -> None:
    model = nn.ModuleDict({f"a_{'long_' * 6}name": nn.ModuleDict({"query": nn.Linear(2, 2)})})
    with record(model) as recording:
        (part,) = model.values()
        part["query"](torch.ones(1, 2)).sum().backward()
    page = opened(recording.graph)
    page.locator("input[type=search]").fill("op:addmm")
    row = page.locator(".found button span")
    assert row.inner_text().endswith(".query")
    assert row.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_enter_walks_through_all_that_was_found_and_says_where_it_is(
    opened: Open, transformer: Graph
) -> None:
    page = opened(transformer)
    wanted = [n.id for n in transformer.nodes if n.operation == "gelu"]
    assert len(wanted) == 12
    page.locator("input[type=search]").fill("op:gelu")
    said = page.locator(".count")
    expect(said).to_have_text("12")
    for at, item in enumerate(wanted[:3], 1):
        page.keyboard.press("Enter")
        expect(said).to_have_text(f"{at} of 12")
        expect(page.locator(f'.card.selected[data-item="{item}"]')).to_be_in_viewport()
    page.keyboard.press("Shift+Enter")
    expect(said).to_have_text("2 of 12")
    for _ in range(2):
        page.keyboard.press("Shift+Enter")
    expect(said).to_have_text("12 of 12")  # before the first comes the last
    page.locator("input[type=search]").fill("op:nothing")
    expect(said).to_have_text("none")


def test_what_was_found_is_marked_in_the_picture_and_on_the_minimap(
    opened: Open, transformer: Graph
) -> None:
    page = opened(transformer)
    page.locator("input[type=search]").fill("op:gelu")
    # One in the first layer; the other eleven layers are one card.
    expect(page.locator(".minimap")).to_have_attribute("data-marked", "2")
    marked = page.locator(".card.matching").evaluate_all("all => all.map(o => +o.dataset.item)")
    page.keyboard.press("Escape")
    expect(page.locator(".minimap")).to_have_attribute("data-marked", "0")
    assert marked
    assert page.locator(".card.matching").count() == 0
