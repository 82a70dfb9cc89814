"""Provide the interactive view: TypeScript sources, their build, and the bundle."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_BUNDLE = Path(__file__).parent / "dist" / "view.js"

_STYLE = """\
html, body { margin: 0; height: 100%; }
.graphviz-torch-view { display: block; width: 100%; height: 100%; min-height: 20rem; }
"""


@cache
def view_script() -> str:
    """Return the interactive view as the text of one self-contained ES module.

    The module exports `mount(element, payload, {onSelect, selected, theme, colorBy, page})`. A page
    can append code that calls `mount` to the text. With `page: true` the view fills the page: it
    handles all keys and, unless the page is in a frame, changes the page's address.

    Raises:
        FileNotFoundError: if the view was not built. Installing the package builds it.

    >>> "mount" in view_script()
    True
    """
    try:
        return _BUNDLE.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{_BUNDLE} does not exist: the view is built when the package is installed. "
            "Run `pip install .` (or `pip install -e .`) in the clone."
        ) from None


def view_style() -> str:
    """Return CSS for a page that the view fills. The CSS of the view itself is in its script."""
    return _STYLE
