"""Graphs to show in the view, and actions of a user on the page."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from playwright.sync_api import Page

from graphviz_torch import record
from graphviz_torch.graph import Graph, Node
from tests.support.models import MLP, TransformerBlock, worked_example

Open = Callable[..., Page]


def worked() -> Graph:
    with record() as recording:
        tensors = worked_example()
        x, a, b, c, y = (tensors[name] for name in "xabcy")
        y.backward()
        del a, b, c, tensors
    del x, y
    return untimed(recording.graph)


def untimed(graph: Graph) -> Graph:
    return graph.annotate(seconds={node.id: None for node in graph.nodes})


def mlp() -> Graph:
    torch.manual_seed(0)
    model = MLP()
    with record(model) as recording:
        model(torch.randn(3, 4)).sum().backward()
    return untimed(recording.graph)


def block() -> Graph:
    torch.manual_seed(0)
    model = TransformerBlock()
    with record(model) as recording:
        model(torch.randn(2, 3, 8)).sum().backward()
    return untimed(recording.graph)


def cards(page: Page) -> set[int]:
    """Return the items of all cards, after fitting the graph into the window.

    Cards far from the window are not in the document.
    """
    page.get_by_role("button", name="See all").click()
    items = page.locator(".card").evaluate_all("all => all.map(one => +one.dataset.item)")
    return set(items)


def bring(page: Page, name: str) -> str:
    """Move the group of this name into the window, and return its item."""
    page.locator("input[type=search]").fill(name)
    found = page.locator(".found button").filter(
        has=page.get_by_text(re.compile(rf"^group · {re.escape(name)}$"))
    )
    item = found.get_attribute("data-found")
    assert item is not None
    found.click()
    page.wait_for_selector(f'.selected[data-item="{item}"]')
    return item


def search(page: Page, words: str) -> None:
    page.locator("input[type=search]").fill(words)
    page.locator(".found button").first.click()


def find(graph: Graph, **wanted: str) -> Node:
    return next(n for n in graph.nodes if all(getattr(n, k) == v for k, v in wanted.items()))
