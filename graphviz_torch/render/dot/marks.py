"""What a drawing adds to its nodes: findings, and differences from another graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...graph import Finding, Graph
from .. import labels
from ..drawing.visible import Visible
from . import markup

Mark = Literal["added", "removed", "changed"]

SIGNS: dict[str, str] = {"added": "+", "removed": labels.MINUS, "changed": "≠"}
WARNINGS = {"error": "✖", "warning": "⚠", "info": "\N{INFORMATION SOURCE}"}
_PEN = ' color="{}" penwidth=2.5'


@dataclass(slots=True)
class Marks:
    """Lines and attributes to add, by key."""

    lines: dict[int, list[str]] = field(default_factory=dict)
    pens: dict[int, str] = field(default_factory=dict)


def mark(
    graph: Graph,
    drawn: Visible,
    colors: Mapping[str, str],
    findings: Iterable[Finding],
    differences: Mapping[int, Mark],
) -> Marks:
    """The marks of a drawing. What is in a closed group, or written inside a node, marks that."""
    marks = Marks()

    def add(node: int, sign: str, color: str, pen: str) -> None:
        key = drawn.key(node)
        line = f"<B>{markup.small(sign, color)}</B>"
        lines = marks.lines.setdefault(key, [])
        if line not in lines:
            lines.append(line)
        marks.pens.setdefault(key, pen)

    for finding in findings:
        nodes = finding.nodes
        if finding.rule == "failed":  # an operation that failed is no node; one in backward is
            nodes = tuple(n for n in nodes if graph.failure and n == graph.failure.node)
        color = colors[finding.severity]
        sign = f"{WARNINGS[finding.severity]} {markup.escape(finding.rule)}"
        for node in nodes:
            add(node, sign, color, _PEN.format(color))
    for node, difference in differences.items():
        sign = f"{SIGNS[difference]} {difference}"
        host = drawn.inner.host(node)
        if host != node:
            if differences.get(host) == difference:
                continue
            sign += f": {markup.escape(graph.nodes[node].label or graph.nodes[node].title)}"
        color = colors[difference]
        dashed = ' style="rounded,filled,dashed"' if difference == "removed" else ""
        add(node, sign, color, _PEN.format(color) + dashed)
    for key in {*drawn.before, *drawn.behind}:
        # Edges that are not drawn name their ends, so these must show what they are called.
        if key >= 0:
            marks.lines.setdefault(key, []).insert(0, markup.small(f"#{key}", colors["muted"]))
    return marks
