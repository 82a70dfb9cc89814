"""The app's frame: page config and navigation. `streamlit run app/server.py`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import streamlit as st

FOLDER = Path(__file__).resolve().parent


def package() -> str:
    """The name under which this folder is imported: "app", or that of a package around it."""
    names, folder = [FOLDER.name], FOLDER.parent
    while (folder / "__init__.py").exists():
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) == 1:  # a checkout: an app.py where the command was given is not this app
        sys.path.insert(0, str(folder))
    elif str(folder) not in sys.path:
        sys.path.append(str(folder))
    return ".".join(names)


NAME = package()


def page(name: str) -> Callable[[], None]:
    """A page that is imported when it is first opened."""

    def draw() -> None:
        importlib.import_module(f"{NAME}.views.{name}").draw()

    return draw


# It loads torch while the page is drawn.
importlib.import_module(f"{NAME}.jobs.job").start()

# Before the navigation: without it, the browser asks the network for the icon of the page.
st.set_page_config("graphviz_torch", str(FOLDER / "icon.svg"), layout="wide")
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
                ("checkpoints", "Checkpoints", "save"),
            )
        ),
    ],
    position="top",
).run()
