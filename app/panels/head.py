"""The first row of a page: its title, and beside it what can be chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from .language import translated


def draw_head(
    title: str,
    parts: Sequence[str],
    *,
    key: str,
    label: str,
    about: str,
    on_change: Callable[[], None] | None = None,
) -> tuple[DeltaGenerator, str]:
    """Draw the title and the choice, and return the row and what is chosen.

    Args:
        title: of the page.
        parts: what can be chosen; the first one is chosen at first.
        key: of the choice, in the link too.
        label: of the choice, for a screen reader.
        about: the page, in a few sentences.
        on_change: called before the rerun in which another part is chosen.
    """
    row = st.container(horizontal=True, vertical_alignment="center", gap="medium")
    with row:
        st.title(title, anchor=False, help=about, width="content")
        chosen = st.segmented_control(
            label, parts, default=parts[0], required=True, key=key, bind="query-params",
            label_visibility="collapsed", on_change=on_change, format_func=translated,
        )  # fmt: skip
    return row, str(chosen)
