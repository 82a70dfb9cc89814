"""The step that marks what is drawn with findings, and with differences from another graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...graph import FAILURE_RULES, Finding, Graph
from .. import labels
from .drawing import Drawing, Marks, Sign

SIGNS = {"added": "+", "removed": labels.MINUS, "changed": "≠"}
WARNINGS = {"error": "✖", "warning": "⚠", "info": "\N{INFORMATION SOURCE}"}


def mark(drawing: Drawing) -> Drawing:
    """The drawing with its marks. What is in a closed group, or inside a node, marks that."""
    signs: dict[int, list[Sign]] = {}
    outlines: dict[int, str] = {}
    differences = drawing.options["marks"] or {}
    if not (drawing.findings or differences or drawing.before or drawing.behind):
        return drawing
    nodes, failure = drawing.graph.nodes, drawing.graph.failure

    def add(node: int, text: str, color: str) -> None:
        key = drawing.key(node)
        sign = Sign(text, color)
        known = signs.setdefault(key, [])
        if sign not in known:
            known.append(sign)
        outlines.setdefault(key, color)

    for finding in drawing.findings:
        named = finding.nodes
        if finding.rule == "exception":  # an operation that failed in forward has no node
            named = tuple(n for n in named if failure and n == failure.node)
        behind = _behind_cuts(drawing.graph, finding)
        named = tuple(n for n in named if n not in behind) or named
        for node in named:
            add(node, f"{WARNINGS[finding.severity]} {finding.rule}", finding.severity)
    for node, difference in differences.items():
        text = f"{SIGNS[difference]} {difference}"
        host = drawing.inner.host(node)
        if host != node:
            if differences.get(host) == difference:
                continue
            text += f": {nodes[node].label or nodes[node].title}"
        add(node, text, difference)
    for key in _named(drawing):
        # Edges that are not drawn name their ends, so these must show what they are called.
        if key >= 0:
            signs.setdefault(key, []).insert(0, Sign(f"#{key}", "muted", strong=False))
    return drawing.having(marks=Marks(signs, outlines))


def _behind_cuts(graph: Graph, finding: Finding) -> set[int]:
    """Return the nodes behind the cuts that a finding tells of: these learn, and have no fault."""
    named = set(finding.nodes)
    return {
        after
        for cut in graph.cuts
        if cut.before in named and cut.where == finding.where
        for after in cut.after
    }


def _named(drawing: Drawing) -> set[int]:
    """The far ends of edges that are not drawn; what is outside of a module is not drawn itself."""
    named = [*drawing.before.values(), *drawing.behind.values()]
    return {key for keys in named for key in keys}.intersection(drawing.nodes)


def failed(graph: Graph, findings: Iterable[Finding]) -> Iterator[Finding]:
    """That the recording ended with an exception, and at which node, where no finding tells it."""
    failure = graph.failure
    if failure is not None and not any(finding.rule in FAILURE_RULES for finding in findings):
        what = failure.operation or "the block"
        what += f" at {failure.where}" if failure.where else ""
        first = failure.message.partition("\n")[0]
        message = f"{what} ended with {failure.error}{f': {first}' if first else ''}"
        yield Finding(
            "exception", "error", message, nodes=() if failure.node is None else (failure.node,)
        )
