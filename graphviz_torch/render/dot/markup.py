"""Text as Graphviz takes it: HTML-like labels and quoted strings, with everything escaped."""

from __future__ import annotations

import re

from ..labels import clipped

SMALL = 9.5  # points; a node's main lines are 12

# Holds the first line of small print off the large line above it.
SPACE = '<FONT POINT-SIZE="13">\N{HAIR SPACE}</FONT>'

_ESCAPES = {
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord('"'): "&quot;",
    ord("\\"): "\\\\",  # Graphviz reads \N and \G even here
    ord("\n"): "<BR/>",
}
_SAFE = re.compile(r"[\w .,:;#+*/=()\[\]-]*", re.ASCII).fullmatch
_QUOTED = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n"}


def escape(text: str) -> str:
    r"""A text for an HTML-like label.

    >>> escape('<b> "5" \\N')
    '&lt;b&gt; &quot;5&quot; \\\\N'
    """
    text = clipped(text)
    return text if _SAFE(text) else text.translate(_ESCAPES)


def quote(text: str) -> str:
    """A text as a quoted DOT string, for a tooltip."""
    return f'"{clipped(text).translate(_QUOTED)}"'


def small(text: str, color: str) -> str:
    """A line of small print."""
    return f'<FONT POINT-SIZE="{SMALL}" COLOR="{color}">{text}</FONT>'


def dot_id(key: int) -> str:
    """The name of a key in a DOT text."""
    return str(key) if key >= 0 else f"g{~key}"
