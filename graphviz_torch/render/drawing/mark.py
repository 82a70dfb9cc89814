"""Drawing steps: mark boxes with findings and differences, and shade them by a value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ...graph import FAILURE_RULES, Finding, Graph
from ...graph.terminal import option
from .. import labels
from ..color_by import NameReader, NumberReader, color_name, reader
from ..style import (
    CATEGORIES,
    COLORS,
    FIRST_STRONG_STEP,
    NONFINITE,
    ON_STRONG,
    SCALE,
    Pair,
    category,
)
from .drawing import Drawing
from .values import Badge, Highlights, Shading

DIFFERENCE_SIGNS = {"added": "+", "removed": labels.MINUS, "changed": "≠"}
SEVERITY_SIGNS = {"error": "✖", "warning": "⚠", "info": "\N{INFORMATION SOURCE}"}


def mark(drawing: Drawing) -> Drawing:
    """Add badges and outlines for findings and differences, and return the new drawing.

    For a node without a box of its own, the box that shows the node is marked. A finding without
    nodes marks no box; the legend below the picture contains it (dot/legend.py).
    """
    badges: dict[int, list[Badge]] = {}
    outlines: dict[int, str] = {}
    differences = drawing.options["marks"] or {}
    if not (drawing.findings or differences or drawing.named_sources or drawing.named_targets):
        return drawing
    nodes, failure = drawing.graph.nodes, drawing.graph.failure

    def add(node: int, text: str, color: str) -> None:
        key = drawing.key(node)
        badge = Badge(text, color)
        known = badges.setdefault(key, [])
        if badge not in known:
            known.append(badge)
        outlines.setdefault(key, color)

    for finding in drawing.findings:
        named = finding.nodes
        if finding.rule == "exception":  # an operation that raised in forward has no node
            named = tuple(n for n in named if failure and n == failure.node)
        behind = _behind_cuts(drawing.graph, finding)
        named = tuple(n for n in named if n not in behind) or named
        for node in named:
            add(node, f"{SEVERITY_SIGNS[finding.severity]} {finding.rule}", finding.severity)
    for node, difference in differences.items():
        text = f"{DIFFERENCE_SIGNS[difference]} {difference}"
        host = drawing.inner.host(node)
        if host != node:
            if differences.get(host) == difference:
                continue
            text += f": {nodes[node].label or nodes[node].title}"
        add(node, text, difference)
    for key in _nodes_named_by_stubs(drawing):
        # The text at the other end of an undrawn edge names this node as "#id", so the node's box
        # has to show the id.
        if key >= 0:
            badges.setdefault(key, []).insert(0, Badge(f"#{key}", "muted", strong=False))
    return drawing.having(highlights=Highlights(badges, outlines))


def _behind_cuts(graph: Graph, finding: Finding) -> set[int]:
    """Return the nodes downstream of the cuts that a finding reports.

    These nodes do get gradients. They are marked only if the finding has no other nodes.
    """
    named = set(finding.nodes)
    return {
        after
        for cut in graph.cuts
        if cut.before in named and cut.where == finding.where
        for after in cut.after
    }


def _nodes_named_by_stubs(drawing: Drawing) -> set[int]:
    """Return the drawn nodes that a text at the other end of an undrawn edge names."""
    named = [*drawing.named_sources.values(), *drawing.named_targets.values()]
    return {key for keys in named for key in keys}.intersection(drawing.nodes)


def failure_findings(graph: Graph, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield a finding for the exception that ended the recording, if there was one.

    Yield nothing if `findings` contain the exception already.
    """
    failure = graph.failure
    if failure is not None and not any(finding.rule in FAILURE_RULES for finding in findings):
        failed = failure.operation or "the block"
        failed += f" at {failure.where}" if failure.where else ""
        first = failure.message.partition("\n")[0]
        message = f"{failed} ended with {failure.error}{f': {first}' if first else ''}"
        yield Finding(
            "exception", "error", message, nodes=() if failure.node is None else (failure.node,)
        )


_MAX_LEGEND_NAMES = 12
_Members = dict[int, tuple[int, ...]]  # key of a box -> nodes whose values determine its fill


def fill_by_value(drawing: Drawing) -> Drawing:
    """Compute the fill colors and the legend for `color_by`, and return the new drawing.

    Raises:
        ValueError: if `color_by` is unknown, or if no node has a value for it.
    """
    color_by = drawing.options["color_by"]
    if color_by is None:
        return drawing
    how = reader(drawing.graph, color_by)
    members = _members(drawing, isinstance(how, NumberReader) and how.summed, color_by == "module")
    if isinstance(how, NameReader):
        return drawing.having(shading=_by_name(drawing, members, how, color_by == "trainable"))
    # With color_by="gradient", no value is added to a node's box, because the box shows the
    # gradient already.
    said = how.own or color_by != "gradient"
    shading = _by_value(drawing, members, how, said, color_name(color_by))
    return drawing.having(shading=shading)


def _members(drawing: Drawing, summed: bool, modules: bool) -> _Members:
    members: _Members = {i: (i,) for i in drawing.nodes}
    for number in drawing.boxes:
        inside = drawing.contents[number]
        # With color_by="module", identical blocks are ignored, because they are other modules.
        members[~number] = inside.own if modules else inside.nodes
    if summed:  # the sum in a node's box includes the nodes that are written inside it
        for i in drawing.inner.folded:
            host = drawing.inner.host(i)
            if host in members:
                members[host] += (i,)
    return members


def _by_name(drawing: Drawing, members: _Members, how: NameReader, trainable: bool) -> Shading:
    nodes = drawing.graph.nodes
    names = {
        key: {how.read(nodes[i]) for i in ids if not nodes[i].leaf or len(ids) == 1}
        for key, ids in members.items()
    }
    if trainable:  # in a group, operations without parameters are ignored
        for found in names.values():
            if len(found) > 1:
                found.discard("")
            if len(found) > 1:
                found.clear()
                found.add("partly frozen")
    listed = sorted({name for found in names.values() for name in found if name})
    places = category(listed)
    more = f" ({_MAX_LEGEND_NAMES} of {len(listed)})" if len(listed) > _MAX_LEGEND_NAMES else ""
    return Shading(
        fills={
            key: CATEGORIES[places[next(iter(found))]]
            for key, found in names.items()
            if len(found) == 1
        },
        title=how.title + more,
        scale=tuple((CATEGORIES[places[name]], name) for name in listed[:_MAX_LEGEND_NAMES]),
    )


def _by_value(
    drawing: Drawing, members: _Members, how: NumberReader, said: bool, name: str
) -> Shading:
    nodes = drawing.graph.nodes
    values: dict[int, float] = {}
    for key, ids in members.items():
        found = [v for v in (how.read(nodes[i]) for i in ids) if v is not None]
        if found:
            # A group's value is the sum of times or bytes, but the largest of gradients.
            largest = max(found, key=lambda v: (math.isnan(v), v))
            values[key] = sum(found) if how.summed else largest
    if not values:
        raise ValueError(
            f"{option('color_by', name)}: the graph has no values of this kind. {how.advice}"
        )
    finite = [v for v in values.values() if math.isfinite(v)]
    logarithmic = how.bounds is None and not any(v < 0 for v in finite)
    usual = [v for v in finite if v > 0 or not logarithmic] if how.bounds is None else how.bounds
    low, high = (min(usual), max(usual)) if usual else (0.0, 0.0)
    fills: dict[int, Pair | None] = {}
    inks: dict[int, Pair] = {}
    words: dict[int, str] = {}
    for key, number in values.items():
        if said or key < 0:
            text = how.words(number) if math.isfinite(number) else "not finite"
            words[key] = f"{how.says} {text}"
        if not math.isfinite(number):
            fills[key] = NONFINITE
            continue
        step = _step(number, low, high, logarithmic)
        fills[key] = SCALE[step]
        if step > 1:
            inks[key] = ON_STRONG if step >= FIRST_STRONG_STEP else COLORS["ink"]
    middle = math.sqrt(low) * math.sqrt(high) if logarithmic else low / 2 + high / 2
    marks = {0: low, len(SCALE) // 2: middle, len(SCALE) - 1: high}
    scale: list[tuple[Pair | None, str]] = [
        (pair, how.words(marks[i]) if i in marks and usual else "") for i, pair in enumerate(SCALE)
    ]
    if len(finite) < len(values):
        scale.append((NONFINITE, "NaN or Inf"))
    if how.missing and len(values) < len(members):
        # A box without a value gets None, which draws a dashed outline. Otherwise an unfilled box
        # would look like one with the lightest color of the scale.
        fills.update(dict.fromkeys(members.keys() - values.keys()))
        scale.append((None, how.missing))
    return Shading(fills, inks, words, how.title, tuple(scale))


def _step(value: float, low: float, high: float, logarithmic: bool) -> int:
    """Return the index in `SCALE` for a value: the first up to `low`, the last from `high` on.

    Args:
        value: the value.
        low, high: smallest and largest value of the scale.
        logarithmic: True for a logarithmic scale, False for a linear one.
    """
    if value <= low or high <= low:
        return 0
    if value >= high:
        return len(SCALE) - 1
    if logarithmic:
        share = (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    else:
        # All values are halved, because the difference of two large values could overflow.
        share = (value / 2 - low / 2) / (high / 2 - low / 2)
    return min(int(share * len(SCALE)), len(SCALE) - 1)
