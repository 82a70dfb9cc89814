"""The pages of findings show every rule, with a program and what `find` says of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from graphviz_torch import rules

DOCS = Path(__file__).parents[2] / "docs"
AGAIN = "write them with `python docs/finding_pages.py`"


def writer() -> Any:
    spec = importlib.util.spec_from_file_location("finding_pages", DOCS / "finding_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = writer()
PROGRAMS = {
    rule: program
    for page in sorted(PAGES.FOLDER.glob("*.md"))
    for rule, program in PAGES.programs(page.read_text()).items()
}


@pytest.mark.parametrize("family", PAGES.families())
def test_a_page_says_what_find_says_now(family: str) -> None:
    text = (PAGES.FOLDER / f"{family}.md").read_text()
    assert text == PAGES.page(family, text), AGAIN


def test_the_index_lists_every_rule() -> None:
    assert (PAGES.FOLDER / "index.md").read_text() == PAGES.index(), AGAIN


def test_every_rule_has_a_program_and_no_page_is_left_over() -> None:
    assert set(PROGRAMS) == {rule for rule, _ in rules()}
    assert {page.stem for page in PAGES.FOLDER.glob("*.md")} == {"index", *PAGES.families()}


@pytest.mark.parametrize("rule", PROGRAMS)
def test_a_program_causes_its_finding_in_ten_lines(rule: str) -> None:
    found = PAGES.said(PROGRAMS[rule])
    first = next((f.rule for f in found if f.severity == found[0].severity), "")
    assert rule in (first, *(f.rule for f in found if f.severity == "info"))
    lines = [line for line in PROGRAMS[rule].splitlines() if line.strip()]
    assert sum(not line.startswith(("import ", "from ")) for line in lines) <= 10
