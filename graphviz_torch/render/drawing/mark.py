"""Drawing step: mark boxes with findings, and with differences from another graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...graph import FAILURE_RULES, Finding, Graph
from .. import labels
from .drawing import Drawing
from .values import Badge, Highlights

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
