"""The places where a gradient was cut, beside or between what a drawing shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..graph import Cut
from . import labels
from .drawing.drawing import Drawing

_NO_CALLS = {
    "data": ".data",
    "no_grad": "no_grad",
    "inference_mode": "inference_mode",
    "switched_off": "set_grad_enabled(False)",
}
# What gives integers or booleans, which no gradient could pass.
_INDICES = frozenset(
    (
        *("topk", "max", "min", "sort", "argmax", "argmin", "argsort", "kthvalue", "median"),
        *("mode", "msort", "cummax", "cummin", "gt", "ge", "lt", "le", "eq", "ne", "nonzero"),
        *("long", "int", "bool", "isnan", "isinf", "isfinite", "searchsorted", "bucketize"),
    )
)
_SCISSORS = "\N{BLACK SCISSORS}"


class CutLine(NamedTuple):
    """A cut that has a side in the drawing."""

    source: int | None  # key of what was cut off; None where that is in no graph of the step
    target: int | None  # key of what went on; None where nothing in the graph did
    text: tuple[str, ...]  # lines: how, of what where a side is None, and where
    color: str  # its name in the palette

    @property
    def key(self) -> int:
        """What it starts or ends at, where that is one thing."""
        key = self.source if self.target is None else self.target
        assert key is not None
        return key

    @property
    def one_sided(self) -> bool:
        """Is one of its sides not in the drawing."""
        return self.source is None or self.target is None


def cut_lines(drawing: Drawing, most: int) -> tuple[list[CutLine], int]:
    """A line for each cut that has its sides in the drawing; of several alike, one.

    A cut has one side where its operand is in no graph of the step, or where nothing came back into
    the graph after it. A parameter that is written inside the operation that uses it has no line:
    that would start at the operation's result, which was not cut. Indices between two nodes have
    none where no finding tells of them, as those of a router: no gradient could pass.

    Args:
        most: lines to give.

    Returns:
        The lines, and how many are left out: with too many, or in what is drawn closed or once.
    """
    if not drawing.graph.cuts:
        return [], 0
    findings = [(set(finding.nodes), finding) for finding in drawing.findings]
    found: dict[tuple[int | None, int | None, str, str], CutLine] = {}
    hidden = set()
    for cut in drawing.graph.cuts:
        for before, after in _sides(cut):
            sides = [node for node in (before, after) if node is not None]
            if not drawing.inner.folded.isdisjoint(sides):
                continue
            color = next(
                (
                    finding.severity
                    for nodes, finding in findings
                    if nodes.issuperset(sides) and (len(sides) > 1 or finding.where == cut.where)
                ),
                "muted",
            )
            if color == "muted" and cut.how in _INDICES and len(sides) > 1:
                continue
            source = None if before is None else drawing.visible_key(before)
            target = None if after is None else drawing.visible_key(after)
            gone = (source is None) != (before is None) or (target is None) != (after is None)
            if gone or source == target:
                hidden.add((before, after, cut.how, cut.where))
                continue
            key = source, target, cut.how, cut.where
            found.setdefault(key, CutLine(source, target, _text(cut, len(sides) < 2), color))
    lines = list(found.values())
    return lines[:most], len(hidden) + len(lines[most:])


def _sides(cut: Cut) -> Iterator[tuple[int | None, int | None]]:
    """The node that was cut off and each that went on; of one side alone, its first node."""
    if cut.before is not None and cut.after:
        yield from [(cut.before, after) for after in cut.after]
    elif cut.before is not None:
        yield cut.before, None
    elif cut.after:
        yield None, cut.after[0]


def _text(cut: Cut, alone: bool) -> tuple[str, ...]:
    lines = [f"{_SCISSORS} {_NO_CALLS.get(cut.how, f'{cut.how}()')}"]
    if alone and cut.label:
        lines[0] += f" of {cut.label}"
    if alone and cut.tensor is not None:
        lines.append(labels.shape(cut.tensor))
    return (*lines, cut.where) if cut.where else tuple(lines)
