"""The interactive view: TypeScript sources, their build, and the bundle."""

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
    """Return the view as the text of one self-contained ES module.

    It exports `mount(element, payload, {onSelect, selected, theme, colorBy, page})`; the code of a
    page may follow in the same text and call `mount`. `page: true` declares that the view fills its
    page: it then handles all keys, and the address of the page unless it is in a frame.

    Raises:
        FileNotFoundError: if the view was not built, which happens when the package is installed.

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
    """Return CSS for a page that the view fills; the style of the view itself is in its script."""
    return _STYLE
