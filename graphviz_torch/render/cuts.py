"""Draw cuts (detach, no_grad, integer casts, ...) as dashed lines.

A line connects the node before the cut to the node after the cut. If only one of these nodes
exists, a text replaces the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..graph import Cut
from ..graph.immutable import NamedTuple
from . import labels
from .drawing.drawing import Drawing
from .drawing.values import End, Stub

_NO_CALLS = {
    "data": ".data",
    "no_grad": "no_grad",
    "inference_mode": "inference_mode",
    "switched_off": "set_grad_enabled(False)",
}
# Operations with integer or boolean results, through which no gradient can flow.
_INDICES = frozenset(
    (
        *("topk", "max", "min", "sort", "argmax", "argmin", "argsort", "kthvalue", "median"),
        *("mode", "msort", "cummax", "cummin", "gt", "ge", "lt", "le", "eq", "ne", "nonzero"),
        *("long", "int", "bool", "isnan", "isinf", "isfinite", "searchsorted", "bucketize"),
    )
)
_MAX_PLACE = 40  # maximum number of characters of "train.py:41"; longer: its end
_SCISSORS = "\N{BLACK SCISSORS}"


class CutLine(NamedTuple):
    """The line that draws a cut.

    A cut has two sides: the node upstream and the node downstream. At least one is drawn.
    """

    source: int | None  # key of the detached node; None if no graph of the step contains the node
    target: int | None  # key of the node that used the result; None if no node in the graph did
    text: tuple[str, ...]  # lines of text: operation, tensor (if a side is None), source line
    color: str  # name of the color in the palette
    call: Stub | None = None  # box of the first call without a node on the way to the target

    @property
    def key(self) -> int:
        """Key of the downstream side or, if only the upstream side is drawn, of this side."""
        key = self.source if self.target is None else self.target
        assert key is not None
        return key


def cut_lines(drawing: Drawing, most: int) -> tuple[list[CutLine], int]:
    """Return the lines of the cuts with at least one drawn side.

    Identical cuts share one line. A cut has only one side if no graph of the step contains the
    detached tensor, or if no node used the result.

    Some cuts have no line. If a detached parameter is written inside an operation, a line would
    start at the operation's result. Operations with integer results, such as argmax, never pass a
    gradient, so their cuts are drawn only if a finding reports them.

    Args:
        most: maximum number of lines.

    Returns:
        The lines, and the number of cuts that are not drawn because they exceed `most`, are inside
            closed groups, or are in blocks that are not drawn because an identical block is.
    """
    if not drawing.graph.cuts:
        return [], 0
    findings = [(set(finding.nodes), finding) for finding in drawing.findings]
    calls = _first_calls(drawing)
    found: dict[tuple[int | None, End | None, str, str], CutLine] = {}
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
            call = None if source is None else calls.get((source, target))
            key = source, call or target, cut.how, cut.where
            found.setdefault(key, CutLine(source, target, _text(cut, len(sides) < 2), color, call))
    lines = list(found.values())
    return lines[:most], len(hidden) + len(lines[most:])


def _first_calls(drawing: Drawing) -> dict[tuple[int, int | None], Stub]:
    """Return the boxes of calls through which data goes from one drawn element to another.

    Returns:
        (key of the first element, key of the second) -> the first box on the way.
    """
    users: dict[End, list[End]] = {}
    for source, target in drawing.stubs.links:
        users.setdefault(source, []).append(target)
    found: dict[tuple[int, int | None], Stub] = {}
    for source, target in drawing.stubs.links:
        if isinstance(source, int) and isinstance(target, Stub):
            reached: list[End] = [target]
            for end in reached:  # the loop appends the users of boxes
                if isinstance(end, int):
                    found.setdefault((source, end), target)
                else:
                    reached += [user for user in users.get(end, ()) if user not in reached]
    return found


def _sides(cut: Cut) -> Iterator[tuple[int | None, int | None]]:
    """Yield the (upstream, downstream) nodes of a cut; None for a missing side."""
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
    if cut.where:
        more = len(cut.where) > _MAX_PLACE
        lines.append(f"…{cut.where[-_MAX_PLACE:]}" if more else cut.where)
    return tuple(lines)
