"""Test how the view shows two graphs drawn as one, and an operation that raised."""

from __future__ import annotations

import torch
from playwright.sync_api import Page

from graphviz_torch import diff, find, record
from graphviz_torch.comparison.diff import GraphDiff
from graphviz_torch.graph import Graph
from graphviz_torch.render.html import view
from tests.support.viewed import Open, cards, mlp

pytest_plugins = ["tests.support.view_fixtures"]


def text(page: Page, mark: str) -> list[str]:
    return page.locator(f".card.{mark}").evaluate_all("all => all.map(one => one.textContent)")


def test_what_differs_is_told_by_a_word_a_form_and_a_colour(
    opened: Open, changed: GraphDiff
) -> None:
    page = opened(changed)
    cards(page)
    union, marks = changed.union(), changed.marks()
    drawn = {node.id for node in union.nodes if node.leaf != "parameter"}
    looks = {}
    for mark, sign in {"added": "+", "removed": "−", "changed": "~"}.items():  # noqa: RUF001
        shown = page.locator(f".card.{mark}").evaluate_all("all => all.map(o => +o.dataset.item)")
        assert set(shown) == {node for node in drawn if marks.get(node) == mark} != set()
        assert all(f"{sign} {mark}" in said for said in text(page, mark))
        style = "one => (s => [s.strokeDasharray, s.strokeWidth, s.stroke])(getComputedStyle(one))"
        looks[mark] = tuple(page.locator(f".card.{mark} > .form").first.evaluate(style))
    assert len({dashes for dashes, _, _ in looks.values()}) == 3
    assert len({stroke for _, _, stroke in looks.values()}) == 3
    assert page.locator(".color-by").input_value() == "difference"


def test_what_changed_is_said_on_the_card_and_in_the_details(
    opened: Open, changed: GraphDiff
) -> None:
    page = opened(changed)
    (said,) = [each for each in text(page, "changed") if "shape [2, 8]" in each]
    assert "shape [2, 8] → [2, 16]" in said
    page.locator('.card.changed:has-text("[2, 8] → [2, 16]")').click()
    panel = page.locator(".panel").inner_text()
    assert "difference\nchanged" in panel
    assert "[2, 8] → [2, 16]" in panel


def test_the_overview_lists_the_differences_and_leads_to_them(
    opened: Open, changed: GraphDiff
) -> None:
    page = opened(changed)
    panel = page.locator(".panel").inner_text()
    nodes = {change.b for change in changed.changed}
    for title, count in {
        "Removed": len(changed.removed),
        "Added": len(changed.added),
        "Changed": len(nodes),
    }.items():
        assert f"{title} ({count})" in panel
    page.locator(".panel a", has_text="tanh").click()
    page.wait_for_selector(".card.added.selected")


def test_edges_of_one_graph_alone_are_drawn_so(opened: Open, changed: GraphDiff) -> None:
    page = opened(changed)
    looks = "all => all.map(one => getComputedStyle(one).strokeDasharray)"
    added = page.locator(".wire.added").evaluate_all(looks)
    removed = page.locator(".wire.removed").evaluate_all(looks)
    assert set(added) == {"none"}
    assert removed
    assert "none" not in removed


def test_a_closed_group_says_what_differs_inside(opened: Open, changed: GraphDiff) -> None:
    page = opened(changed)
    page.get_by_role("button", name="Close all").click()
    page.wait_for_selector(".card [data-act=open]")
    groups = page.locator(".card:has([data-act=open])").all_text_contents()
    assert any("changed" in said for said in groups)
    assert any("added" in said for said in groups)


def test_two_equal_graphs_differ_in_nothing(opened: Open) -> None:
    torch.manual_seed(0)
    graph = mlp()
    page = opened(diff(graph, graph))
    assert "No difference." in page.locator(".panel").inner_text()
    assert page.locator(".added, .removed, .changed").count() == 0


def test_a_page_of_two_graphs_tells_the_direction(opened: Open) -> None:
    x = torch.ones(3, requires_grad=True)
    with record() as first:
        before = x.exp().sum()
        before.backward()
    with record() as second:
        after = x.exp().mean()
        after.backward()
    page = opened(diff(first.graph, second.graph))
    assert page.title() == "From before to after"
    assert page.locator(".panel h2").inner_text() == "From before to after"


def test_a_difference_is_shown_in_a_notebooks_cell(changed: GraphDiff) -> None:
    cell = view(changed)._repr_html_()
    assert "Two graphs of sum" in cell


def test_an_operation_that_failed_is_drawn_behind_its_operands(opened: Open, failed: Graph) -> None:
    page = opened(failed, findings=find(failed))
    card = page.locator(".card.failed")
    assert card.count() == 1
    said = card.text_content() or ""
    assert "matmul" in said
    assert "RuntimeError" in said
    assert "view_fixtures.py:" in said
    assert page.locator(".wire.failing").count() == 1
    assert card.locator(".form").evaluate("one => getComputedStyle(one).strokeDasharray") != "none"
    assert f"{len(failed.nodes)} nodes" in page.locator(".panel").inner_text()
    card.click()
    page.wait_for_selector(".card.failed.selected")
    assert "it has no node" in page.locator(".panel").inner_text()


def test_the_way_of_a_backward_does_not_lead_through_what_failed(
    opened: Open, failed: Graph
) -> None:
    page = opened(failed)
    assert f"{len(failed.nodes)} steps" in page.locator(".player output").inner_text()


def test_a_chip_of_a_finding_names_its_node_and_its_line(opened: Open, failed: Graph) -> None:
    page = opened(failed, findings=find(failed))
    chip = page.locator(".finding .leads button").first.inner_text()
    (h,) = (node for node in failed.nodes if node.label == "h")
    assert chip == f"h · {h.title} · {h.where}"
    page.locator(".finding .leads button").first.click()
    page.wait_for_selector(".card.selected .badge.error")
