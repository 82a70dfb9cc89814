"""The lesson in Chinese: the switch, the link, and no English sentence left on the page."""

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

APP = Path(__file__).parents[2] / "app"
RUN = chinese()["Run backward"]
PARTS = ("run program", "run transfers", "run timeline", "run gradients")


def words(app: AppTest) -> list[str]:
    """Return what a page says in sentences, titles, helps and labels."""
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
