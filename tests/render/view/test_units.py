"""Compare numbers as text in the view with the table that also tests Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from graphviz_torch.graph import short_dtype
from graphviz_torch.render.view import view_script

pytest_plugins = ["tests.support.view_fixtures"]
CASES = json.loads((Path(__file__).parents[2] / "golden" / "units.json").read_text("utf-8"))
FUNCTIONS = sorted(CASES.keys() - {"about"})


@pytest.fixture(scope="module")
def units(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.set_content(f'<script type="module">{view_script()}\nwindow.units = view.units;</script>')
    page.wait_for_function("window.units")
    yield page
    page.close()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_view_writes_what_the_table_says(units: Page, name: str) -> None:
    said = units.evaluate(
        """([name, given]) => given.map((value) => {
          if (name === "number") return units.number(Number(value));
          return units[name](...[value].flat());
        })""",
        [name, [given for given, _ in CASES[name]]],
    )
    assert dict(zip(map(str, cases(name)), said, strict=True)) == {
        str(given): text for given, text in CASES[name]
    }


def cases(name: str) -> list[Any]:
    return [given for given, _ in CASES[name]]


def test_a_dtype_is_shortened_alike_in_python() -> None:
    assert [short_dtype(name) for name in cases("dtype")] == [text for _, text in CASES["dtype"]]
