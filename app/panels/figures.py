"""What pages draw of a graph: its view, gradients, transfers, findings. Each takes values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from app import words
from app.panels.graph_view import view
from app.panels.selection import name, select, selected, table
from app.panels.timeline import draw_timeline
from graphviz_torch import Finding, GradientStats, Graph, Node, TensorMeta, Transfer, view_payload

_ICONS = {"error": ":material/error:", "warning": ":material/warning:", "info": ":material/info:"}
_SHORT = 16  # a gradient of at most so many values is spelled out
_FEW = 4  # so many gradients are spelled out
_MANY = 5  # findings shown before the rest is folded away


def draw_error(error: str) -> None:
    """An error in place: its first line, and below it the place that the rest points at."""
    first, _, rest = error.partition("\n")
    st.error(words.plain(first), icon=_ICONS["error"])
    if rest:
        st.code(rest, language=None)


def draw_graph(
    graph: Graph, findings: Sequence[Finding], *, key: str, color_by: str = "role"
) -> None:
    """The interactive view; a click selects a node, and a selection made elsewhere shows here."""
    held = st.session_state.get(f"{key} payload")
    if held is None or held[0] is not graph:
        held = st.session_state[f"{key} payload"] = (graph, view_payload(graph, findings))
    view(
        held[1],
        selected(key),
        lambda node: select(key, node),
        color_by=color_by,
        height=700,
        key=f"{key} view",
    )


def draw_findings(findings: Sequence[Finding]) -> None:
    """What is wrong, worst first: the sentence, its cause, what to try, the line."""
    for position, finding in enumerate(findings):
        if position == _MANY:
            with st.expander(words.count(len(findings) - _MANY, "more finding")):
                for rest in findings[_MANY:]:
                    _draw_finding(rest)
            return
        _draw_finding(finding)


def _draw_finding(finding: Finding) -> None:
    show = {"error": st.error, "warning": st.warning, "info": st.info}[finding.severity]
    lines = [f"**{words.plain(finding.message)}**"]
    if finding.advice:
        lines.append(words.plain(finding.advice))
    facts = [finding.rule, finding.cause and f"cause: {finding.cause}", finding.where]
    lines.append(f":small[{words.plain(' · '.join(filter(None, facts)))}]")
    show("  \n".join(lines), icon=_ICONS[finding.severity])


def draw_gradients(graph: Graph, *, key: str) -> None:
    """The gradient of every leaf, small ones spelled out, and on demand of every node."""
    leaves = [node for node in graph.nodes if node.leaf]
    small = [(n, s) for n in leaves if (s := _first(n)) and s.values and len(s.values) <= _SHORT]
    if 0 < len(small) <= _FEW:
        lines = [f"{name(node)}.grad = {_spelled(stats)}" for node, stats in small]
        st.code("\n".join(lines), language=None, wrap_lines=True)
    every = st.toggle("Every node, in the order of backward", key=f"{key} every")
    shown = sorted((n for n in graph.nodes if n.grad_outputs), key=_order) if every else leaves
    rows = [_gradient_row(node, every) for node in shown]
    nodes: list[int | None] = [node.id for node in shown]
    if not every:
        lost = [p for p in graph.parameters if p.node is None and p.requires_grad]
        rows += [_empty_row(p.name, p.tensor) for p in lost]
        nodes += [None] * len(lost)
    table(rows, nodes, key=key, place="gradients", label="Gradients", columns=_GRADIENT_COLUMNS)


_NUMBER = st.column_config.NumberColumn
_GRADIENT_COLUMNS = {
    "norm": _NUMBER(format="%.4g", help="Euclidean norm of the gradient"),
    "largest": _NUMBER(format="%.4g", help="Largest absolute value"),
    "zeros": _NUMBER(format="%.0f %%", help="Share of elements that are 0"),
    "NaN, Inf": _NUMBER(help="Number of elements that are not finite"),
    "ms": _NUMBER(format="%.3f", help="Milliseconds in backward, on the device's own clock"),
}


def _gradient_row(node: Node, every: bool) -> dict[str, object]:
    stats = _first(node)
    meta = next((meta for meta in node.outputs if meta is not None), None)
    if stats is None:
        return _empty_row(name(node), meta)
    row: dict[str, object] = {
        "tensor": name(node),
        "norm": stats.norm,
        "largest": stats.max_abs,
        "zeros": 100 * stats.zero_fraction,
        "NaN, Inf": stats.nonfinite,
        "shape": str(meta or ""),
    }
    if every:
        row["ms"] = None if node.seconds is None else 1000 * node.seconds
    return row


def _empty_row(tensor: str, meta: TensorMeta | None) -> dict[str, object]:
    return {"tensor": f"{tensor} (no gradient)", "shape": str(meta or "")}


def _first(node: Node) -> GradientStats | None:
    return next((stats for stats in node.grad_outputs if stats is not None), None)


def _order(node: Node) -> int:
    return -node.id if node.order is None else node.order


def _spelled(stats: GradientStats) -> str:
    """The values as nested lists of the gradient's shape; a flat list where that is not known."""
    parts = [
        f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3e}"
        for value in stats.values or ()
    ]
    shape = (len(parts),) if stats.tensor is None else stats.tensor.shape
    if min(shape, default=1) < 1 or math.prod(shape) != len(parts):  # ragged, or a wrong file
        shape = (len(parts),)
    for size in reversed(shape):
        parts = [
            f"[{', '.join(parts[start : start + size])}]" for start in range(0, len(parts), size)
        ]
    return ", ".join(parts)


def draw_transfers(graph: Graph, *, key: str, ran: bool = True) -> None:
    """Copies between devices: a sentence, all steps on one axis, and a table.

    `ran` is False while only the forward ran.
    """
    transfers = graph.transfers
    parts = []
    for phase in ("forward", "backward"):
        those = [transfer for transfer in transfers if transfer.phase == phase]
        if those:
            moved = words.size(sum(transfer.nbytes or 0 for transfer in those))
            copies = "1 copy" if len(those) == 1 else f"{len(those):,} copies"
            parts.append(f"**{copies}** in {phase} ({moved})")
    if parts:
        st.markdown(" and ".join(parts) + ("." if ran else ", still to come."))
    elif any(node.grad_outputs or node.order is not None for node in graph.nodes):
        st.markdown("None: every tensor stayed on its device.")
    elif ran:
        st.markdown("No transfers were recorded in this graph.")
    draw_timeline(graph, key=key)
    if not transfers:
        return
    table(
        [_transfer_row(graph, transfer) for transfer in transfers],
        [transfer.node for transfer in transfers],
        key=key,
        place="transfers",
        label="Transfers",
        columns={"bytes": _NUMBER(format="localized")},
    )


def _transfer_row(graph: Graph, transfer: Transfer) -> dict[str, object]:
    node = graph.nodes[transfer.node] if transfer.node is not None else None
    row: dict[str, object] = {
        "direction": transfer.kind,
        "bytes": transfer.nbytes,
        "from": transfer.source,
        "to": transfer.target,
        "phase": transfer.phase,
        "node": name(node) if node else "outside the graph",
        "tensor": " ".join(filter(None, (transfer.label, str(transfer.tensor)))),
        "line": transfer.where,
    }
    if transfer.pinned is not None:
        row["host memory"] = "pinned" if transfer.pinned else "pageable"
    if transfer.seconds is not None:
        row["time"] = words.duration(transfer.seconds)
    return row
