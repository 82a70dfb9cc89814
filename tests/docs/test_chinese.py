"""Compare the Chinese pages with the English ones, and check the links between translations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import chinese
from graphviz_torch import rules

PAGES = chinese.translations()
CONTENTS = sorted(chinese.CONTENTS)


def name(page: Path) -> str:
    return str(page.relative_to(chinese.ROOT))


CHINESE = {name(chinese.english(page)): name(page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_chinese_page_has_the_parts_and_the_programs_of_the_english_one(page: Path) -> None:
    outline = chinese.outline(chinese.english(page))
    assert chinese.outline(page) == outline, (
        "translate it; `python -m docs.chinese` copies programs"
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_chinese_page_links_what_the_english_one_does_in_chinese_where_that_exists(
    page: Path,
) -> None:
    english = chinese.english(page)
    expected = [CHINESE.get(link, link) for link in chinese.links(english) if link != name(page)]
    assert [link for link in chinese.links(page) if link != name(english)] == sorted(expected)


@pytest.mark.parametrize("page", [*PAGES, *CONTENTS], ids=name)
def test_a_page_and_its_translation_link_each_other(page: Path) -> None:
    english = chinese.english(page)
    for here, there, language in ((page, english, "English"), (english, page, "中文")):
        [link] = re.findall(rf"\[{language}\]\((.*?)\)", here.read_text())
        assert (here.parent / link).resolve() == there


def test_the_list_of_translated_rules_is_complete_and_has_their_severities() -> None:
    index = (chinese.FOLDER / "findings" / "index.md").read_text()
    listed = re.findall(r"^\| \[`([\w-]+)`\]\(\1\.md\) \| (\w+) \|", index, re.M)
    severities = {"error": "错误", "warning": "警告", "info": "提示"}
    files = {page.stem for page in (chinese.FOLDER / "findings").glob("*.md")} - {"index"}
    assert sorted(listed) == sorted((id, severities[rules().by_id(id).severity]) for id in files)
