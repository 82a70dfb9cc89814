"""The legend below a picture: what forms and colours mean, what was found, what was left out."""

from __future__ import annotations

from collections.abc import Iterable

from ..graph import Finding
from . import dot_text as say
from .dot_shade import Shading
from .style import FORMS, MEANINGS, Role

WARNINGS = {"error": "✖", "warning": "⚠", "info": "\N{INFORMATION SOURCE}"}
_MOST_FINDINGS = 6


def legend(
    roles: Iterable[Role],
    colors: dict[str, str],
    shading: Shading,
    findings: list[Finding],
    notes: list[str],
) -> str:
    """The legend as the HTML-like label of the graph; "" where there is nothing to explain."""
    rows = [_roles(list(roles), colors), _scale(shading, colors)]
    rows += [
        _text(f"<B>{WARNINGS[f.severity]} {say.escape(f.message)}</B>", colors[f.severity])
        for f in findings[:_MOST_FINDINGS]
    ]
    if len(findings) > _MOST_FINDINGS:
        rows.append(_text(f"and {len(findings) - _MOST_FINDINGS} more findings", colors["muted"]))
    rows += [_text(say.escape(note), colors["muted"]) for note in notes]
    cells = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD></TR>' for row in rows if row)
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="2">{cells}</TABLE>' if cells else ""


def _text(text: str, color: str) -> str:
    return f'<FONT POINT-SIZE="{say.SMALL}" COLOR="{color}">{text}</FONT>'


def _roles(roles: list[Role], colors: dict[str, str]) -> str:
    ordered = [role for role in FORMS if role in roles]
    if len(ordered) < 2:
        return ""
    return _cells(
        [
            (colors[role], colors[f"{role}_line"], MEANINGS[role], FORMS[role].peripheries)
            for role in ordered
        ],
        colors,
    )


def _scale(shading: Shading, colors: dict[str, str]) -> str:
    if not shading.scale:
        return ""
    swatches = [(fill, colors["cluster_line"], text, 1) for fill, text in shading.scale]
    title = _text(f"<B>{shading.title}</B>", colors["muted"])
    return _table(f"<TD>{title}</TD><TD>{_cells(swatches, colors)}</TD>")


def _cells(swatches: list[tuple[str, str, str, int]], colors: dict[str, str]) -> str:
    cells = ""
    for fill, line, text, border in swatches:
        cells += f'<TD BORDER="{border}" BGCOLOR="{fill}" COLOR="{line}" STYLE="rounded"'
        cells += ' WIDTH="16" HEIGHT="11"></TD>'
        cells += f"<TD>{_text(text, colors['muted'])} </TD>" if text else ""
    return _table(cells)


def _table(cells: str) -> str:
    return (
        f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="3" CELLPADDING="1"><TR>{cells}</TR></TABLE>'
    )
