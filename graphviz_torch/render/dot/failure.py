"""The operation that ended a recording: what raised it, and a node that never came to be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...graph import FAILURE_RULES, Finding, Graph
from ..drawing.visible import Visible, dot_id
from . import markup
from .marks import WARNINGS


def failed(graph: Graph, findings: Iterable[Finding]) -> Iterator[Finding]:
    """That the recording ended with an exception, and at which node, where no finding tells it."""
    failure = graph.failure
    if failure is not None and not any(finding.rule in FAILURE_RULES for finding in findings):
        what = failure.operation or "the block"
        what += f" at {failure.where}" if failure.where else ""
        first = failure.message.partition("\n")[0]
        message = f"{what} ended with {failure.error}{f': {first}' if first else ''}"
        yield Finding(
            "failed", "error", message, nodes=() if failure.node is None else (failure.node,)
        )


def failure_lines(graph: Graph, drawn: Visible, colors: Mapping[str, str]) -> Iterator[str]:
    """A dashed node for the operation that failed, behind what went into it; else nothing."""
    failure = graph.failure
    if failure is None or not failure.operation or failure.operation == "backward":
        return
    parts = (drawn.itself(part.node) for part in failure.operands if part.node is not None)
    sources = [key for key in dict.fromkeys(parts) if key is not None]
    if not sources:
        return
    color = colors["error"]
    text = f"{markup.escape(failure.operation)}<BR/>"
    text += markup.small(f"{WARNINGS['error']} {markup.escape(failure.error)}", color)
    text += f"<BR/>{markup.small(markup.escape(failure.where), color)}" if failure.where else ""
    yield (
        f'\tfailed [label=<{text}> style="rounded,dashed" color="{color}" fontcolor="{color}" '
        f"penwidth=2]"
    )
    yield from (f'\t{dot_id(key)} -> failed [style=dashed color="{color}"]' for key in sources)
