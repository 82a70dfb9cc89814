"""The places where a gradient was cut, between what a drawing shows."""

from __future__ import annotations

from typing import NamedTuple

from .drawing.drawing import Drawing

_NO_CALLS = {"data": ".data", "no_grad": "no_grad", "inference_mode": "inference_mode"}
_SCISSORS = "\N{BLACK SCISSORS}"


class CutLine(NamedTuple):
    """A cut that has both its sides in the drawing."""

    source: int  # key of what was cut off
    target: int  # key of what went on
    text: tuple[str, ...]  # lines: how, and where
    color: str  # its name in the palette


def cut_lines(drawing: Drawing, most: int) -> tuple[list[CutLine], int]:
    """A line for each cut that has both its sides in the drawing; of several alike, one.

    Not of a parameter that is written inside the operation that uses it: the line would start at
    that operation's result, which was not cut.

    Args:
        most: lines to give.

    Returns:
        The lines, and how many are left out: with too many, or in what is drawn closed or once.
    """
    if not drawing.graph.cuts:
        return [], 0
    findings = [(set(finding.nodes), finding.severity) for finding in drawing.findings]
    found: dict[tuple[int, int, str, str], CutLine] = {}
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
            color = next((color for nodes, color in findings if nodes.issuperset(sides)), "muted")
            how = f"{_SCISSORS} {_NO_CALLS.get(cut.how, f'{cut.how}()')}"
            text = (how, cut.where) if cut.where else (how,)
            key = source, target, cut.how, cut.where
            found.setdefault(key, CutLine(source, target, text, color))
    lines = list(found.values())
    return lines[:most], len(hidden) + len(lines[most:])
