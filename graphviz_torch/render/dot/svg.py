"""Finish the SVG of Graphviz: draw titles over edges, and add the colors of dark mode."""

from __future__ import annotations

import re

from ..style import Theme, dark_rules

_FRAME = re.compile(
    r'<g id="[^"]*" class="cluster">\n<title>.*?</title>\n'
    r'(?:<g id="[^"]*"><a [^>]*>\n)?<(?:path|polygon) fill="(?P<fill>[^"]*)".*?</g>\n',
    re.S,
)
_TITLE = re.compile(r"<text .*?</text>\n", re.S)


def finish(svg: str, theme: Theme) -> str:
    """Return the SVG with titles drawn over edges and, for theme="auto", CSS for dark mode."""
    # Graphviz turns the second of two spaces into a no-break space.
    svg = _titles_above_edges(svg.replace("&#160;", " "))
    if theme == "auto":
        svg = svg.replace("<g id=", f"<style>{dark_rules()}</style>\n<g id=", 1)
    return svg


def _titles_above_edges(svg: str) -> str:
    """Move the titles of clusters to the end of the SVG, so that no edge crosses a title.

    Each title gets a rim in the fill color of its cluster.
    """
    titles: list[str] = []

    def without_title(frame: re.Match[str]) -> str:
        rim = f'stroke="{frame["fill"]}" stroke-width="4" paint-order="stroke"'
        found = _TITLE.findall(frame[0])
        titles.extend(text.replace("<text ", f"<text {rim} ", 1) for text in found)
        return _TITLE.sub("", frame[0])

    svg = _FRAME.sub(without_title, svg)
    if not titles:
        return svg
    end = svg.rindex("</g>\n</svg>")
    return f'{svg[:end]}<g class="titles">\n{"".join(titles)}</g>\n{svg[end:]}'
