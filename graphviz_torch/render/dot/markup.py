"""Escape text for Graphviz: for HTML-like labels and for quoted strings."""

from __future__ import annotations

import re

from ..labels import clip

SMALL_POINTS = 9.5  # size of small text; main lines have 12 points

# Vertical space between a main line and the small text below it.
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
# Graphviz decodes entities in quoted strings too: it would turn "&#27;" into a control character.
_QUOTED = {ord("&"): "&amp;", ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n"}


def escape(text: str) -> str:
    r"""Escape a text for an HTML-like label.

    >>> escape('<b> "5" \\N')
    '&lt;b&gt; &quot;5&quot; \\\\N'
    """
    text = clip(text)
    return text if _SAFE(text) else text.translate(_ESCAPES)


def quote(text: str) -> str:
    """Quote and escape a text as a DOT string, such as for a tooltip."""
    return f'"{clip(text).translate(_QUOTED)}"'


def small(text: str, color: str) -> str:
    """Return markup for a line of small text."""
    return f'<FONT POINT-SIZE="{SMALL_POINTS}" COLOR="{color}">{text}</FONT>'


def dot_id(key: int) -> str:
    """Return the DOT name of a drawn element, given its key."""
    return str(key) if key >= 0 else f"g{~key}"
