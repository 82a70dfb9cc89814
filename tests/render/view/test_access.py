"""Test the view with keyboard, screen reader and high contrast, by the rules of axe-core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe

from graphviz_torch import find
from graphviz_torch.graph import Graph
from tests.support.viewed import Open, block, worked

pytest_plugins = ["tests.support.view_fixtures"]

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
RULES = {
    "runOnly": {"type": "tag", "values": TAGS},
    "rules": {"landmark-one-main": {"enabled": True}},
}
themes = pytest.mark.parametrize("theme", ["light", "dark"])


def violations(page: object) -> list[str]:
    found = Axe().run(page, options=RULES).response["violations"]  # type: ignore[arg-type]
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]


@themes
@pytest.mark.parametrize("size", [(1280, 800), (320, 640)], ids=lambda size: str(size[0]))
@pytest.mark.parametrize("graph", [worked, block], ids=lambda make: make.__name__)
def test_a_page_breaks_no_rule(
    opened: Open,
    theme: Literal["light", "dark"],
    size: tuple[int, int],
    graph: Callable[[], Graph],
) -> None:
    page = opened(graph(), theme=theme, size=size)
    assert violations(page) == []
    page.locator(".card.output").click()
    page.wait_for_selector(".card.selected")
    assert violations(page) == []


@themes
def test_findings_a_list_of_keys_and_search_break_no_rule(
    opened: Open,
    theme: Literal["light", "dark"],
    failed: Graph,
) -> None:
    page = opened(failed, theme=theme, findings=find(failed))
    page.locator("input[type=search]").fill("addmm")
    page.wait_for_selector(".found button")
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert violations(page) == []


@themes
def test_a_difference_breaks_no_rule(
    opened: Open,
    theme: Literal["light", "dark"],
    changed: object,
) -> None:
    assert violations(opened(changed, theme=theme)) == []


def test_axe_looks_into_the_view(opened: Open) -> None:
    page = opened(worked())
    page.evaluate(
        "document.querySelector('#view').firstChild.shadowRoot.querySelector('.bar button')"
        ".setAttribute('aria-label', '')"
    )
    page.evaluate(
        "document.querySelector('#view').firstChild.shadowRoot.querySelector('.bar button')"
        ".replaceChildren()"
    )
    page.evaluate(
        "document.querySelector('#view').firstChild.shadowRoot.querySelector('.bar button')"
        ".removeAttribute('title')"
    )
    assert any(each.startswith("button-name") for each in violations(page))


def test_the_focus_goes_from_the_bar_to_the_picture_to_the_details(opened: Open) -> None:
    page = opened(worked())
    order: list[str] = []
    for _ in range(24):
        page.keyboard.press("Tab")
        part = page.evaluate(
            """() => {
              const one = document.querySelector("#view").firstChild.shadowRoot.activeElement;
              const parts = ["bar", "crumbs", "drawing", "panel", "legend", "player"];
              return parts.find((name) => one?.closest(`.${name}`)) ?? "";
            }"""
        )
        if part and part not in order:
            order.append(part)
    assert order == ["bar", "crumbs", "drawing", "panel", "legend", "player"]
