"""A browser, a page with a graph, and a graph too large to open whole, for tests of the view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, sync_playwright

from graphviz_torch import record, to_html
from graphviz_torch.graph import Graph
from tests.support.models import Transformer, tokens

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--font-render-hinting=none",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[object]:
    """Opens a graph's page; fails a test after an error on the page or a request to elsewhere."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")

    def open_(graph: Graph | str, **options: object) -> Page:
        path = tmp_path / "graph.html"
        text = graph if isinstance(graph, str) else to_html(graph, **options)  # type: ignore[arg-type]
        path.write_text(text, encoding="utf-8")
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: m.type == "error" and wrong.append(m.text))
        page.on("request", lambda r: r.url.startswith("http") and wrong.append(r.url))
        page.goto(path.as_uri())
        page.wait_for_selector(".view[data-cards]")
        return page

    yield open_
    context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def transformer() -> Graph:
    """Too large to open whole: twelve equal layers."""
    torch.manual_seed(0)
    model = Transformer(depth=12)
    with record(model) as recording:
        model(tokens()).sum().backward()
    return recording.graph
