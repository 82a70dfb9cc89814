"""The pages of findings show every rule, with a program and what `find` says of it."""

from __future__ import annotations

import re

import pytest

from docs import finding_pages as PAGES
from docs.programs import blocks
from graphviz_torch import rules

AGAIN = "write them with `python -m docs.finding_pages`"
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


CASES = list(PAGES.CASE.finditer(PAGES.SYMPTOMS.read_text()))


def test_the_page_of_symptoms_says_what_find_says_now() -> None:
    text = PAGES.SYMPTOMS.read_text()
    assert len(CASES) == len(blocks(text))
    assert text == PAGES.symptoms(text), AGAIN


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["said"].split()[1])
def test_a_repair_takes_the_finding_away(case: re.Match[str]) -> None:
    rule = case["said"].split()[1]
    assert rule in [finding.rule for finding in PAGES.said(case["program"])]
    left = PAGES.said(PAGES.repaired(case["program"], case["repair"]))
    assert [finding for finding in left if finding.severity != "info"] == []
