"""Write the legend below a picture: shapes, colors, findings, omissions; and notes on copies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from textwrap import wrap
from typing import Final
from unicodedata import east_asian_width

from ...graph import Graph, Transfer
from ...graph.terminal import is_shell, option
from ...graph.text import first_items, listing
from .. import labels
from ..drawing.drawing import Drawing
from ..drawing.mark import SEVERITY_SIGNS
from ..drawing.values import Shading
from ..style import MEANINGS, NODE_SHAPES, Role, Theme, palette, pick
from ..wording import MAX_NAMES, nodes_with_size_range
from . import layout

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
    return '<BR ALIGN="LEFT"/>'.join(map(layout.escape, lines)) + (
        '<BR ALIGN="LEFT"/>' if len(lines) > 1 else ""
    )


def _text(text: str, color: str) -> str:
    return f'<FONT POINT-SIZE="{layout.SMALL_POINTS}" COLOR="{color}">{text}</FONT>'


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
    title = layout.escape(shading.title)
    swatches = [
        (pick(fill, theme), colors["cluster_line"], layout.escape(text), 1)
        if fill
        else ("", colors["operation_line"], layout.escape(text), 1)  # dashed
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
    return 0.58 * layout.SMALL_POINTS * len(text) + 10


def _table(cells: str, width: float) -> str:
    # The table has a fixed size. Otherwise a wider row of the legend would stretch its cells.
    attributes = 'ALIGN="LEFT" BORDER="0" CELLBORDER="0" CELLSPACING="3" CELLPADDING="1"'
    size = f'FIXEDSIZE="TRUE" WIDTH="{width:.0f}" HEIGHT="20"'
    return f"<TABLE {attributes} {size}><TR>{cells}</TR></TABLE>"


_MAX_NOTED_COPIES = 3  # maximum number of lines with copies in a picture's note
_MAX_PATH = 60  # maximum length of a module's path in a hint, in characters


def other_copies(graph: Graph) -> str:
    """Return a sentence about copies that no node and no box of data shows; "" if there are none.

    Copies in backward are left out.
    """
    shown = {number for each in graph.untracked for number in each.copies}
    lines: dict[tuple[str, str, str], list[Transfer]] = {}
    for each in graph.transfers:
        if each.node is None and each.phase == "forward" and each.data not in shown:
            lines.setdefault((each.where, each.source, each.target), []).append(each)
    parts = []
    for (where, _, _), copies in lines.items():
        names = dict.fromkeys(each.label for each in copies if each.label)
        of = listing(names, MAX_NAMES) if names else copies[0].operation
        place = f"({where})" if where else ""
        parts.append(" ".join(filter(None, (of, *labels.copies(copies), place))))
    text = "; ".join(first_items(parts, _MAX_NOTED_COPIES))
    return f"copied outside the graph: {text}" if parts else ""


def picture_notes(drawing: Drawing, cuts: int = 0) -> list[str]:
    """Return sentences about everything that the drawing leaves out."""
    return [text for text in (other_copies(drawing.graph), omissions(drawing, cuts)) if text]


def _closed_boxes_text(drawing: Drawing) -> str:
    """Return a text with the number of closed groups and the option that opens the largest one."""
    assert drawing.groups is not None
    groups = drawing.groups.groups
    largest = min(drawing.closed_groups, key=lambda number: (-groups[number].size, number))
    path = _path_to_open(drawing, largest)
    shell = is_shell()
    one = (
        option("module", path) if 0 < len(path) <= _MAX_PATH else "--module" if shell else "module="
    )
    count = len(drawing.closed_groups)
    return f"{count} {'box is' if count == 1 else 'boxes are'} closed ({one} opens one)"


def _path_to_open(drawing: Drawing, number: int) -> str:
    """Return the path to pass as the option `module` to open a group.

    For a run (consecutive nodes), this is the path of the first group inside that is not a run.
    """
    assert drawing.groups is not None
    groups = drawing.groups.groups
    below = [groups[inner] for inner in drawing.groups.with_descendants(number)]
    return next((part.path for part in below if part.kind != "run"), groups[number].path)


def omissions(drawing: Drawing, cuts: int = 0) -> str:
    """Return a sentence about everything that the drawing leaves out; "" if it shows everything."""
    count = len(drawing.graph.nodes)
    if not count:
        return "this graph has no nodes"
    parts = []
    if drawing.closed_groups:
        parts.append(_closed_boxes_text(drawing))
    if drawing.tree.represented_groups:
        alike = "blocks that differ only in the size of one axis"
        alike = alike if nodes_with_size_range(drawing) else "identical blocks"
        parts.append(f"{alike} are drawn once ({option('detail', 'full')} draws each)")
    if cuts:
        parts.append(f"{cuts:,} {'cut is' if cuts == 1 else 'cuts are'} not drawn")
    return f"{count:,} nodes: {'; '.join(parts)}" if parts else ""
