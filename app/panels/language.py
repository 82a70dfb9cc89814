"""The language of the app: English, or Chinese after the visitor has switched.

The Chinese texts are in three files: `chinese.json` for arguments of `translated`,
`chinese_view.json` for buttons and labels of the graph's view, and `chinese_rules.json` for the
summaries of rules whose pages are translated.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import streamlit as st

_CHINESE = "中文"


def draw_switch() -> None:
    """Draw the language switch. The page's link contains the chosen language."""
    st.segmented_control(
        "Language · 语言", ["English", _CHINESE], default="English", required=True,
        key="language", bind="query-params", label_visibility="collapsed",
    )  # fmt: skip


def translated(text: str) -> str:
    """Return the translation of an English text for the visitor, or the text itself."""
    return chinese().get(text, text) if _is_chinese() else text


def chinese_summary(rule: str) -> str:
    """Return the Chinese summary of a rule; "" on an English page, or if the rule has none."""
    return chinese("chinese_rules.json").get(rule, "") if _is_chinese() else ""


def view_words() -> dict[str, str]:
    """Return the texts of the graph's view in the visitor's language; {} for English."""
    return chinese("chinese_view.json") if _is_chinese() else {}


def _is_chinese() -> bool:
    chosen = st.session_state.get("language", st.query_params.get("language"))
    return bool(chosen == _CHINESE)


@functools.cache
def chinese(file: str = "chinese.json") -> dict[str, str]:
    """Return the Chinese texts of a file, by English text or by rule id."""
    texts = Path(__file__).with_name(file).read_text(encoding="utf-8")
    table: dict[str, str] = json.loads(texts)
    return table
