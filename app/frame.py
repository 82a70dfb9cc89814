"""The frame of all pages: title, style and navigation. `main.py` serves this file."""

import importlib
import runpy
from collections.abc import Callable
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import Page

FOLDER = Path(__file__).resolve().parent


NAME = runpy.run_path(str(FOLDER / "package.py"))["NAME"]


def page(name: str) -> Callable[[], None]:
    """Return a function that draws a page, and imports the page's module on the first call."""

    def draw() -> None:
        importlib.import_module(f"{NAME}.views.{name}").draw()

    return draw


def redirect(to: Page, part: str) -> Callable[[], None]:
    """Return a page that redirects to a part of the page `to`, for links from earlier versions."""

    def draw() -> None:
        st.switch_page(to, query_params={**st.query_params, "part": part})

    return draw


# Start the job server, which imports torch in the background, unless `main.py` has started it.
importlib.import_module(f"{NAME}.jobs.job").start()

# Set the icon before the navigation. Otherwise the browser requests an icon from the network.
st.set_page_config("graphviz_torch", str(FOLDER / "icon.svg"), layout="wide")
st.logo(str(FOLDER / "logo.svg"))
st.html(f"<style>{(FOLDER / 'page.css').read_text(encoding='utf-8')}</style>")
run = st.Page(page("run"), title="Run", icon=":material/play_arrow:", default=True)
explore, training, devices, processes = (
    st.Page(page(title.lower()), title=title, icon=f":material/{icon}:", url_path=title.lower())
    for title, icon in (
        ("Explore", "search"),
        ("Training", "show_chart"),
        ("Devices", "memory"),
        ("Processes", "lan"),
    )
)
fit, checkpoints = (
    st.Page(redirect(to, part), title=part, url_path=path, visibility="hidden")
    for path, to, part in (
        ("fit", processes, "Will it fit?"),
        ("checkpoints", devices, "Checkpoints"),
    )
)
pages = [run, explore, training, devices, processes, fit, checkpoints]
st.navigation(pages, position="top").run()
