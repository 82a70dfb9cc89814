"""Escaped text for Graphviz: HTML-like labels and quoted strings."""

from __future__ import annotations

import re

from ..labels import clip

SMALL_POINTS = 9.5  # main lines have 12

# Vertical space between a main line and the small print below it.
SPACE = '<FONT POINT-SIZE="13">\N{HAIR SPACE}</FONT>'

_ESCAPES = {
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord('"'): "&quot;",
    ord("\\"): "\\\\",  # Graphviz expands \N and \G in labels
    ord("\n"): "<BR/>",
}
_SAFE = re.compile(r"[\w .,:;#+*/=()\[\]-]*", re.ASCII).fullmatch
# Graphviz decodes entities in quoted strings too: "&#27;" would become a control character.
_QUOTED = {ord("&"): "&amp;", ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n"}


def escape(text: str) -> str:
    r"""Return a text escaped for an HTML-like label.

    >>> escape('<b> "5" \\N')
    '&lt;b&gt; &quot;5&quot; \\\\N'
    """
    text = clip(text)
    return text if _SAFE(text) else text.translate(_ESCAPES)


def quote(text: str) -> str:
    """Return a text as a quoted DOT string, such as for a tooltip."""
    return f'"{clip(text).translate(_QUOTED)}"'


def small(text: str, color: str) -> str:
    """Return markup for a line of small print."""
    return f'<FONT POINT-SIZE="{SMALL_POINTS}" COLOR="{color}">{text}</FONT>'


def dot_id(key: int) -> str:
    """Return the name of a key in DOT."""
    return str(key) if key >= 0 else f"g{~key}"
