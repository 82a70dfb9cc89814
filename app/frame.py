"""What the app draws on every page: its title, style and navigation, which main.py serves."""

import importlib
import runpy
from collections.abc import Callable
from pathlib import Path

import streamlit as st

FOLDER = Path(__file__).resolve().parent


NAME = runpy.run_path(str(FOLDER / "package.py"))["NAME"]


def page(name: str) -> Callable[[], None]:
    """A page that is imported when it is first opened."""

    def draw() -> None:
        importlib.import_module(f"{NAME}.views.{name}").draw()

    return draw


# It loads torch while the page is drawn, where main.py did not start it before.
importlib.import_module(f"{NAME}.jobs.job").start()

# Before the navigation: without it, the browser asks the network for the icon of the page.
st.set_page_config("graphviz_torch", str(FOLDER / "icon.svg"), layout="wide")
st.logo(str(FOLDER / "logo.svg"))
st.html(f"<style>{(FOLDER / 'page.css').read_text(encoding='utf-8')}</style>")
st.navigation(
    [
        st.Page(page("run"), title="Run backward", icon=":material/play_arrow:", default=True),
        *(
            st.Page(page(name), title=title, icon=f":material/{icon}:", url_path=name)
            for name, title, icon in (
                ("explore", "Explore", "search"),
                ("training", "Training", "show_chart"),
                ("devices", "Devices", "memory"),
                ("processes", "Many processes", "lan"),
                ("fit", "Will it fit?", "straighten"),
                ("checkpoints", "Checkpoints", "save"),
            )
        ),
    ],
    position="top",
).run()
