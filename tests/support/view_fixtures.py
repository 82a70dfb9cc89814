"""Fixtures for tests of the view: a browser, pages with graphs, and a large graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from torch import nn

from graphviz_torch import diff, record, to_html
from graphviz_torch.comparison.diff import GraphDiff
from graphviz_torch.graph import Graph
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.models import Transformer, tokens


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, "--font-render-hinting=none"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def watched(browser: Browser) -> tuple[BrowserContext, list[str]]:
    """Return a context with a page, and what goes wrong on its pages.

    A page or a context for each test would take thrice the CPU.
    """
    context, wrong = browser.new_context(), list[str]()
    context.on("weberror", lambda error: wrong.append(str(error.error)))
    context.on("console", lambda m: m.type == "error" and wrong.append(m.text))
    context.on("request", lambda r: r.url.startswith("http") and wrong.append(r.url))
    context.new_page()
    return context, wrong


@pytest.fixture
def opened(watched: tuple[BrowserContext, list[str]], tmp_path: Path) -> Iterator[object]:
    """Yield a function that opens a graph's page.

    The test fails after an error on the page, or after a request to the network.
    """
    context, wrong = watched
    first = iter(context.pages)

    def open_(
        graph: Graph | str,
        *,
        size: tuple[int, int] = (1280, 800),
        theme: Literal["light", "dark"] = "light",
        address: str = "",
        **options: object,
    ) -> Page:
        path = tmp_path / "graph.html"
        text = graph if isinstance(graph, str) else to_html(graph, **options)  # type: ignore[arg-type]
        path.write_text(text, encoding="utf-8")
        page = next(first, None) or context.new_page()
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=theme)
        page.goto(path.as_uri() + address)
        page.wait_for_selector(".view[data-cards]")
        return page

    yield open_
    kept, *others = context.pages
    for page in others:
        page.close()
    kept.mouse.move(0, 0)
    found = wrong.copy()
    wrong.clear()
    assert found == []


@pytest.fixture(scope="module")
def transformer() -> Graph:
    """Return a graph of twelve equal layers, which is too large to be drawn in full."""
    torch.manual_seed(0)
    model = Transformer(depth=12)
    with record(model) as recording:
        model(tokens()).sum().backward()
    return recording.graph


def _recorded(model: nn.Module) -> Graph:
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    return recording.graph


@pytest.fixture(scope="module")
def changed() -> GraphDiff:
    """Return a difference: a wider first layer, tanh instead of relu, and another layer."""
    torch.manual_seed(0)
    before = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    after = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 3))
    return diff(_recorded(before), _recorded(after))


@pytest.fixture(scope="module")
def failed() -> Graph:
    """Return the graph of a forward that fails at a matmul of wrong shapes after two layers."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with contextlib.suppress(RuntimeError), record(model) as recording:
        h = model(torch.ones(2, 4))
        (h @ torch.ones(4, 2)).sum().backward()
    assert recording.graph.failure is not None
    return recording.graph
