"""The places where a gradient was cut, as dashed lines from what was cut off to what went on."""

from __future__ import annotations

from typing import Final

from ..drawing.drawing import Drawing
from ..style import palette
from . import markup
from .markup import dot_id

MOST: Final = 40  # lines: more hide what they lie over, and take the layout long
_NO_CALLS = {"data": ".data", "no_grad": "no_grad", "inference_mode": "inference_mode"}
_SCISSORS = "\N{BLACK SCISSORS}"


def cut_lines(drawing: Drawing) -> tuple[list[str], int]:
    """A line for each cut that has both its sides in the drawing; of several alike, one.

    Not of a parameter that is written inside the operation that uses it: the line would start at
    that operation's result, which was not cut.

    Returns:
        The lines, and how many are left out: with too many, or in what is drawn closed or once.
    """
    colors = palette(drawing.options["theme"])
    told = [(set(finding.nodes), colors[finding.severity]) for finding in drawing.findings]
    found: dict[tuple[int, int, str, str], str] = {}
    hidden = set()
    for cut in drawing.graph.cuts:
        for after in cut.after if cut.before is not None else ():
            assert cut.before is not None
            sides = cut.before, after
            if not drawing.inner.folded.isdisjoint(sides):
                continue
            source, target = map(drawing.itself, sides)
            if source is None or target is None or source == target:
                hidden.add((sides, cut.how, cut.where))
                continue
            color = (color for nodes, color in told if nodes.issuperset(sides))
            found.setdefault((source, target, cut.how, cut.where), next(color, colors["muted"]))
    lines = [
        f"\t{dot_id(source)} -> {dot_id(target)} [style=dashed arrowhead=none "
        f'color="{color}" fontcolor="{color}" label=<{_label(how, where)}>]'
        for (source, target, how, where), color in found.items()
    ]
    return lines[:MOST], len(hidden) + len(lines[MOST:])


def _label(how: str, where: str) -> str:
    lines = f" {_SCISSORS} {_NO_CALLS.get(how, f'{how}()')}", f" {where}" if where else ""
    return "".join(f'{markup.escape(line)}<BR ALIGN="LEFT"/>' for line in lines if line)
