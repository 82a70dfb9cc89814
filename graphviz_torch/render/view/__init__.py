"""The interactive view: TypeScript sources, the build that bundles them, and what it made."""

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
    """The view as the text of one ES module, which needs nothing else.

    It exports `mount(element, payload, {onSelect, selected, theme, colorBy, page})`; the code of a
    page may follow in the same text and call `mount` by that name. `page: true` says that the view
    fills its page: all keys are its own, and so is the page's address where it stands in no frame.

    Raises:
        FileNotFoundError: if the package was never installed, which is when the view is built.

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
    """CSS for a page that the view fills; the view's own look is in its script, out of reach."""
    return _STYLE
