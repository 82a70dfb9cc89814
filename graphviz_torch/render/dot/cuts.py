"""Write cuts of the graph, such as `detach`, as DOT."""

from __future__ import annotations

from typing import Final, NamedTuple

from .. import cuts
from ..drawing.drawing import Drawing
from ..drawing.stubs import End
from ..style import palette
from . import markup
from .data import end_id
from .markup import dot_id

MAX_CUTS: Final = 40  # more would cover the drawing and slow down the layout


class CutLines(NamedTuple):
    """The DOT lines for the cuts of a drawing."""

    # (key of the drawn side, DOT node with the cut's text), for cuts with only one drawn side
    stubs: list[tuple[int, str]]
    edges: list[str]  # DOT edges, drawn as dashed lines
    links: set[tuple[End, End]]  # (source, target) of `edges` that lead to the box of a call
    hidden: int  # number of cuts that are not drawn


def cut_lines(drawing: Drawing) -> CutLines:
    """Return a dashed line for each cut; a text replaces a side that is not drawn."""
    colors = palette(drawing.options["theme"])
    found, hidden = cuts.cut_lines(drawing, MAX_CUTS)
    lines = CutLines([], [], set(), hidden)
    for number, cut in enumerate(found):
        color = colors[cut.color]
        line = f'style=dashed arrowhead=none color="{color}"'
        if cut.source is not None and cut.target is not None:
            label = f'fontcolor="{color}" label=<{_label(cut.text)}>'
            ends = f"{end_id(cut.source)} -> {end_id(cut.call or cut.target)}"
            lines.edges.append(f"\t{ends} [{line} {label}]")
            if cut.call is not None:
                lines.links.add((cut.source, cut.call))
            continue
        here, stub = dot_id(cut.key), f"cut_{number}"
        text = "<BR/>".join(markup.small(markup.escape(part), color) for part in cut.text)
        # The text has the rank of the drawn side. In another rank, it would push nodes aside.
        lines.stubs.append(
            (cut.key, f'\t{{rank=same {here} {stub} [label=<{text}> shape=plain style=""]}}')
        )
        ends = f"{stub} -> {here}" if cut.source is None else f"{here} -> {stub}"
        lines.edges.append(f"\t{ends} [{line} minlen=2]")
    return lines


def _label(text: tuple[str, ...]) -> str:
    return "".join(f' {markup.escape(line)}<BR ALIGN="LEFT"/>' for line in text)
