"""Compare the index and the page of symptoms with the rules, and run that page's programs."""

from __future__ import annotations

import re

import pytest

from docs import finding_pages as PAGES
from docs.programs import blocks
from graphviz_torch import rules

AGAIN = "write them with `python -m docs.finding_pages`"
CASES = list(PAGES.CASE.finditer(PAGES.SYMPTOMS.read_text()))


def test_the_index_lists_every_rule_and_no_page_is_left_over() -> None:
    assert (PAGES.FOLDER / "index.md").read_text() == PAGES.index(), AGAIN
    pages = {page.stem for page in PAGES.FOLDER.glob("*.md")}
    assert pages == {"index", *(rule.id for rule in rules())}, AGAIN


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
