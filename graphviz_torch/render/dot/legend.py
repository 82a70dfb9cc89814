"""Write the legend below a picture: shapes, colors, findings, and omissions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from textwrap import wrap
from typing import Final
from unicodedata import east_asian_width

from ...graph.text import first_items
from .. import labels
from ..drawing.drawing import Drawing
from ..drawing.mark import SEVERITY_SIGNS
from ..drawing.values import Shading
from ..style import MEANINGS, NODE_SHAPES, Role, Theme, palette, pick
from . import markup

SYMBOL_MEANINGS: Final = {
    "cut": "✂ no gradient passes",
    "untracked": "┄ computed without a gradient",
    "many": f"(3{labels.TIMES}) used by 3 operations",
}
_MAX_FINDINGS = 6
_FINDING_WIDTH = 76  # characters per line; findings are bold
_NOTE_WIDTH = 120  # characters per line of a note
_MAX_LINES = 6  # lines of a finding or note; the rest is cut off


def legend(
    drawing: Drawing,
    roles: frozenset[Role],
    symbols: frozenset[str],
    notes: list[str],
    *,
    inner: bool,
) -> str:
    """Return the legend as an HTML-like label of the graph; "" if there is nothing to explain.

    Args:
        drawing: the drawing.
        roles: roles of the drawn nodes, such as "parameter"; each has its own shape and color.
        symbols: keys of `SYMBOL_MEANINGS` to explain.
        notes: sentences to add below the findings.
        inner: True if operations contain the names of their parameters, which the legend explains.
    """
    theme, shading, findings = drawing.options["theme"], drawing.shading, drawing.findings
    colors = palette(theme)
    rows = [_roles(roles, inner, symbols, theme, bool(shading.fills)), _scale(shading, theme)]
    said = [
        _text(
            f"<B>{SEVERITY_SIGNS[f.severity]} {_lines(f.message, _FINDING_WIDTH)}</B>",
            colors[f.severity],
        )
        for f in findings
    ]
    rows += first_items(said, _MAX_FINDINGS, _text("and {:,} more findings", colors["muted"]))
    rows += [_text(_lines(note, _NOTE_WIDTH), colors["muted"]) for note in notes]
    cells = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD></TR>' for row in rows if row)
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="2">{cells}</TABLE>' if cells else ""


def _lines(message: str, most: int) -> str:
    """Wrap a message to `most` characters per line. A wide (CJK) character counts as two."""
    wide = any(east_asian_width(letter) in "WF" for letter in message)
    lines = wrap(message, most // (1 + wide), max_lines=_MAX_LINES, placeholder=" …")
    return '<BR ALIGN="LEFT"/>'.join(map(markup.escape, lines)) + (
        '<BR ALIGN="LEFT"/>' if len(lines) > 1 else ""
    )


def _text(text: str, color: str) -> str:
    return f'<FONT POINT-SIZE="{markup.SMALL_POINTS}" COLOR="{color}">{text}</FONT>'


@lru_cache
def _roles(
    roles: frozenset[Role], folded: bool, symbols: frozenset[str], theme: Theme, shaded: bool
) -> str:
    colors = palette(theme)
    ordered = [role for role in NODE_SHAPES if role in roles]
    if len(ordered) < 2 and not folded and not symbols:
        return ""
    swatches = [
        (
            colors["background" if shaded else role],
            colors[f"{role}_line"],
            MEANINGS[role],
            NODE_SHAPES[role].peripheries,
        )
        for role in ordered
    ]
    cells, width = _cells(swatches, colors)
    if folded:
        text = "parameter in its operation"
        cells += f"<TD>{_text(text, colors['parameter_line'])}</TD>"
        width += _cell_width(text)
    for text in [text for symbol, text in SYMBOL_MEANINGS.items() if symbol in symbols]:
        cells += f"<TD>{_text(f'  {text}', colors['muted'])}</TD>"
        width += _cell_width(text) + 6
    return _table(cells, width)


def _scale(shading: Shading, theme: Theme) -> str:
    if not shading.scale:
        return ""
    colors = palette(theme)
    title = markup.escape(shading.title)
    swatches = [
        (pick(fill, theme), colors["cluster_line"], markup.escape(text), 1)
        if fill
        else ("", colors["operation_line"], markup.escape(text), 1)  # dashed
        for fill, text in shading.scale
    ]
    cells, width = _cells(swatches, colors)
    head = _text(f"<B>{title}</B>", colors["muted"])
    return _table(f"<TD>{head}</TD>{cells}", width + 1.1 * _cell_width(title))


def _cells(
    swatches: list[tuple[str, str, str, int]], colors: Mapping[str, str]
) -> tuple[str, float]:
    """Return the table cells that explain colors, and the cells' approximate width in points.

    Args:
        swatches: (fill, color of the outline, meaning, number of outlines) of each color. An
            empty fill is drawn as a dashed outline.
        colors: the palette.
    """
    cells, width = "", 0.0
    for fill, line, text, border in swatches:
        ground, style = (f' BGCOLOR="{fill}"', "rounded") if fill else ("", "rounded,dashed")
        cells += f'<TD BORDER="{border}"{ground} COLOR="{line}" STYLE="{style}"'
        cells += ' WIDTH="16" HEIGHT="11"></TD>'
        cells += f"<TD>{_text(text, colors['muted'])} </TD>" if text else ""
        width += 22 + (_cell_width(text) if text else 0)
    return cells, width


def _cell_width(text: str) -> float:
    """Return the approximate width of a cell with a text, in points."""
    return 0.58 * markup.SMALL_POINTS * len(text) + 10


def _table(cells: str, width: float) -> str:
    # The table has a fixed size. Otherwise a wider row of the legend would stretch its cells.
    attributes = 'ALIGN="LEFT" BORDER="0" CELLBORDER="0" CELLSPACING="3" CELLPADDING="1"'
    size = f'FIXEDSIZE="TRUE" WIDTH="{width:.0f}" HEIGHT="20"'
    return f"<TABLE {attributes} {size}><TR>{cells}</TR></TABLE>"
