"""Cuts (detach, no_grad, integer casts, ...) as lines beside or between drawn elements."""

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
# Operations that return integers or booleans, through which no gradient can flow.
_INDICES = frozenset(
    (
        *("topk", "max", "min", "sort", "argmax", "argmin", "argsort", "kthvalue", "median"),
        *("mode", "msort", "cummax", "cummin", "gt", "ge", "lt", "le", "eq", "ne", "nonzero"),
        *("long", "int", "bool", "isnan", "isinf", "isfinite", "searchsorted", "bucketize"),
    )
)
_SCISSORS = "\N{BLACK SCISSORS}"


class CutLine(NamedTuple):
    """A cut with at least one side in the drawing."""

    source: int | None  # key of the detached node; None if it is in no graph of the step
    target: int | None  # key of the node that used the result; None if none in the graph did
    text: tuple[str, ...]  # lines: the operation, the tensor if a side is None, the source line
    color: str  # name in the palette

    @property
    def key(self) -> int:
        """Return the key of the only drawn side."""
        key = self.source if self.target is None else self.target
        assert key is not None
        return key

    @property
    def one_sided(self) -> bool:
        """Return True if one side of the cut is not in the drawing."""
        return self.source is None or self.target is None


def cut_lines(drawing: Drawing, most: int) -> tuple[list[CutLine], int]:
    """Return a line for each cut whose sides are drawn; identical cuts share one.

    A cut has one side if its operand is in no graph of the step, or if nothing computed from its
    result is in the graph. A parameter written inside its operation has no line, as that would
    start at the result of the operation, which was not cut. Cuts at indices, such as those of a
    router, are left out unless a finding reports them: no gradient could flow there.

    Args:
        most: maximum number of lines.

    Returns:
        The lines, and the number of cuts left out: beyond `most`, inside closed groups, or in
        blocks that another one represents.
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
    """Yield (upstream, downstream) node pairs of a cut; None for a missing side."""
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
