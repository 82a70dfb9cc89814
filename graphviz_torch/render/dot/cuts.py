"""The lines of a DOT text for the places where a gradient was cut."""

from __future__ import annotations

from typing import Final, NamedTuple

from .. import cuts
from ..drawing.drawing import Drawing
from ..style import palette
from . import markup
from .markup import dot_id

MOST: Final = 40  # lines: more hide what they lie over, and take the layout long


class CutLines(NamedTuple):
    """The cuts of a drawing in DOT."""

    stubs: list[tuple[int, str]]  # the far ends of cuts with one side, by the key beside which
    edges: list[str]  # dashed
    hidden: int  # how many cuts are left out


def cut_lines(drawing: Drawing) -> CutLines:
    """The dashed lines of the cuts, and a text where one ends at nothing that is drawn."""
    colors = palette(drawing.options["theme"])
    found, hidden = cuts.cut_lines(drawing, MOST)
    lines = CutLines([], [], hidden)
    for number, cut in enumerate(found):
        color = colors[cut.color]
        line = f'style=dashed arrowhead=none color="{color}"'
        if cut.source is not None and cut.target is not None:
            label = f'fontcolor="{color}" label=<{_label(cut.text)}>'
            ends = f"{dot_id(cut.source)} -> {dot_id(cut.target)}"
            lines.edges.append(f"\t{ends} [{line} {label}]")
            continue
        here, stub = dot_id(cut.key), f"cut_{number}"
        text = "<BR/>".join(markup.small(markup.escape(part), color) for part in cut.text)
        # Beside its node: above, it would push what is before the node aside.
        lines.stubs.append(
            (cut.key, f'\t{{rank=same {here} {stub} [label=<{text}> shape=plain style=""]}}')
        )
        ends = f"{stub} -> {here}" if cut.source is None else f"{here} -> {stub}"
        lines.edges.append(f"\t{ends} [{line} minlen=2]")
    return lines


def _label(text: tuple[str, ...]) -> str:
    return "".join(f' {markup.escape(line)}<BR ALIGN="LEFT"/>' for line in text)
