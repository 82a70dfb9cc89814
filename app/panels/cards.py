"""Show the gallery as cards with a small picture, a title, a sentence and a button."""

from __future__ import annotations

import base64

import streamlit as st

from ..models import gallery
from .language import translated
from .own import draw_command
from .text import escape


def choose_model() -> str | None:
    """Draw the cards, or only return the name of the model that the visitor has opened."""
    titles = gallery.titles()
    title = st.query_params.get("model", "")
    if title in titles:
        with st.container(horizontal=True, vertical_alignment="center"):
            sentence = translated(gallery.model(titles[title]).sentence)
            st.markdown(f"**{escape(title)}** · {escape(sentence)}")
            st.button(translated("All models"), icon=":material/apps:", on_click=_show_cards)
        return titles[title]
    draw_command()
    st.markdown(translated("**An example**: choose one, then run its backward."))
    names = list(titles.items())
    for start in range(0, len(names), 5):
        for column, (title, name) in zip(st.columns(5), names[start : start + 5], strict=False):
            with column.container(border=True, height="stretch", vertical_alignment="distribute"):
                _draw_card(name, title)
    return None


def _draw_card(name: str, title: str) -> None:
    model = gallery.model(name)
    with st.container():
        if model.picture.exists():
            data = base64.b64encode(model.picture.read_bytes()).decode()
            style = "width: 100%; aspect-ratio: 2; object-fit: contain"
            st.html(f'<img alt="" style="{style}" src="data:image/svg+xml;base64,{data}">')
        st.markdown(f"**{escape(title)}**  \n:small[{escape(translated(model.sentence))}]")
    st.button(translated("Open"), key=f"card {name}", on_click=_open, args=[title], width="stretch",
              icon=":material/arrow_forward:")  # fmt: skip


def _open(title: str) -> None:
    st.query_params["model"] = title


def _show_cards() -> None:
    st.query_params.pop("model", None)
