"""The first row of a page: the title, and a control that selects a part of the page."""

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
    """Draw the title and the control, and return the row and the chosen part.

    Args:
        title: title of the page.
        parts: the parts of the page; the first one is the default.
        key: Streamlit key of the choice, and name of the choice in the page's link.
        label: name of the choice for screen readers.
        about: help text about the page, a few sentences.
        on_change: called when another part is chosen, before the page runs again.
    """
    row = st.container(horizontal=True, vertical_alignment="center", gap="medium")
    with row:
        st.title(title, anchor=False, help=about, width="content")
        chosen = st.segmented_control(
            label, parts, default=parts[0], required=True, key=key, bind="query-params",
            label_visibility="collapsed", on_change=on_change, format_func=translated,
        )  # fmt: skip
    return row, str(chosen)
