"""Test the lesson in Chinese: the switch, the link, and that no English sentence is left."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from string import Formatter

import pytest
from streamlit.testing.v1 import AppTest

from app.models import gallery
from app.panels.language import chinese
from tests.support.app_pages import column, drawn, lines, page, press

ROOT = Path(__file__).parents[2]
APP = ROOT / "app"
VIEW = ROOT / "graphviz_torch" / "render" / "view" / "src"
PAGES = ROOT / "docs" / "zh" / "findings"
RUN = chinese()["Run backward"]
SUMMARIES = chinese("chinese_rules.json")
PARTS = ("run program", "run transfers", "run timeline", "run gradients")


def words(app: AppTest) -> list[str]:
    """Return the text of a page: sentences, titles, helps and labels."""
    said = [app.title[0].value, *(each.value for each in [*app.markdown, *app.caption])]
    said = [each for each in said if not each.startswith("- ")]  # the rules
    labelled = [*app.button, *app.toggle, *app.selectbox, *app.text_area, *app.expander]
    said += [each.label for each in labelled]
    said += [
        each.proto.help
        for each in [*labelled, *app.markdown, *app.title]
        if hasattr(each.proto, "help")
    ]
    said += [title for each in app.selectbox for title in each.options]
    for place in PARTS:
        data = drawn(app, place)
        said += [
            data["label"],
            *(mark["label"] for mark in data.get("steps", []) + data.get("copies", [])),
        ]
        said += [text for each in data.get("columns", []) for text in (each["name"], each["help"])]
    return said


def test_each_chinese_text_is_that_of_a_text_in_the_app_and_has_its_fields() -> None:
    written = {
        node.value
        for file in APP.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
    }
    written |= {gallery.model(name).sentence for name in gallery.NAMES}
    assert set(chinese()) <= written
    for english, text in chinese().items():
        fields = [{field for _, field, _, _ in Formatter().parse(each)} for each in (english, text)]
        assert fields[0] - {None} >= fields[1] - {None} >= fields[0] - {None, "phase"}, english


def test_the_view_has_each_of_its_texts_in_chinese_and_no_other() -> None:
    sources = [file.read_text() for file in VIEW.rglob("*.ts")]
    quoted = {text for each in sources for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', each)}
    quoted |= {f"left bar; for a group, the {join}" for join in ("sum", "median", "largest")}
    quoted |= {f"{mark.title()} ({{}})" for mark in ("removed", "added", "changed")}
    table = chinese("chinese_view.json")
    assert {text.replace("\n", "\\n") for text in table} <= quoted
    said = {text for each in sources for text in re.findall(r'\bsay\("((?:[^"\\]|\\.)*)"', each)}
    assert {text.replace("\\n", "\n") for text in said} <= table.keys()
    for english, text in table.items():
        assert english.count("{}") == text.count("{}")


def test_rules_with_a_chinese_page_have_its_first_sentence_as_their_summary() -> None:
    pages = {file.stem: file.read_text() for file in PAGES.glob("*.md") if file.stem != "index"}
    assert {name: text.split("\n\n")[3] for name, text in pages.items()} == SUMMARIES


def test_a_finding_begins_with_the_chinese_summary_of_its_rule() -> None:
    app = page(language="中文", source=chinese()["A model"], model="Detached layer", backward="1")
    [details] = [each.value for each in app.markdown if "cut\\-gradient" in each.value]
    summary, advice, _ = details.split("  \n")
    assert summary.replace("\\", "") == SUMMARIES["cut-gradient"]
    assert advice.startswith("Remove the detach")


@pytest.mark.parametrize("source", ["Worked example", "Your own expression"])
def test_the_lesson_in_chinese_has_no_english_sentence(source: str) -> None:
    app = page(language="中文", source=chinese()[source])
    app.query_params["device"] = "CPU"
    press(app, RUN)
    assert "x.grad = [2, 2.667, 3.333]" in lines(app, "result")
    for text in words(app):
        prose = re.sub(r"`[^`]*`|\*\*|[\w.]+ → [\w.]+", "", text)
        assert not re.search(r"[a-z]{2,},? [a-z]{2,}", prose, re.I), text


def test_the_cards_of_the_models_are_chinese() -> None:
    app = page(language="中文", source=chinese()["A model"])
    for text in [*(each.value for each in app.markdown), *(each.label for each in app.button)]:
        assert not re.search(r"[a-z]{2,},? [a-z]{2,}", text.split(":small[")[-1], re.I), text


def test_the_switch_changes_the_words_and_keeps_what_ran() -> None:
    app = press(page())
    english = column(app, "run transfers", "line")
    [switch] = [each for each in app.button_group if each.key == "language"]
    switch.set_value("中文").run()
    assert app.title[0].value == chinese()["What does autograd do?"]
    assert column(app, "run transfers", "代码行") == english
    assert column(app, "run transfers", "阶段") == ["前向", "反向"]
    assert lines(app, "result") == ["x.grad = [2, 2.667, 3.333]"]
