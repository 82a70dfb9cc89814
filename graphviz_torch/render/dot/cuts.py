"""The lines of a DOT text for the places where a gradient was cut."""

from __future__ import annotations

from typing import Final

from .. import cuts
from ..drawing.drawing import Drawing
from ..style import palette
from . import markup
from .markup import dot_id

MOST: Final = 40  # lines: more hide what they lie over, and take the layout long


def cut_lines(drawing: Drawing) -> tuple[list[str], int]:
    """The dashed lines of the cuts, and how many are left out."""
    colors = palette(drawing.options["theme"])
    found, hidden = cuts.cut_lines(drawing, MOST)
    return [
        f"\t{dot_id(cut.source)} -> {dot_id(cut.target)} [style=dashed arrowhead=none "
        f'color="{colors[cut.color]}" fontcolor="{colors[cut.color]}" label=<{_label(cut.text)}>]'
        for cut in found
    ], hidden


def _label(text: tuple[str, ...]) -> str:
    return "".join(f' {markup.escape(line)}<BR ALIGN="LEFT"/>' for line in text)
