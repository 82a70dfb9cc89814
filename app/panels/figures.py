"""Parts of pages that show a graph's interactive view, findings, gradients and copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

import graphviz_torch
from graphviz_torch import Finding, Graph
from graphviz_torch.graph import GradientStats, Node, TensorMeta, Transfer

from . import text
from .graph_view import view
from .language import chinese_summary, translated
from .linked import name, select, selected_node, table

_ICONS = {"error": ":material/error:", "warning": ":material/warning:", "info": ":material/info:"}
_SMALL_GRAPH = 10  # largest number of nodes for which all gradients are shown at first
_MAX_VALUES = 4  # largest number of elements in a value that is printed in full
_MAX_LINES = 4  # if there are more findings, they do not get a line each
_MAX_FINDINGS = 50
_SHOW = {"error": st.error, "warning": st.warning, "info": st.info}


def draw_error(error: str) -> None:
    """Draw an error: the first line as a message, the others, which show source, as code."""
    first, _, rest = error.partition("\n")
    st.error(text.prose(first), icon=_ICONS["error"])
    if rest:
        st.code(rest, language=None)


def draw_graph(
    payload: str,
    *,
    key: str,
    color_by: str | None = None,
    height: int = 700,
    place: str = "view",
) -> None:
    """Draw the interactive view, linked to the selected node of the page.

    Without `color_by`, the view colors nodes by gradient or by difference, if there are any.

    Args:
        payload: result of `view_payload`.
        key: key of the selection.
        color_by: coloring of the view; None colors by gradient or difference.
        height: height in CSS pixels.
        place: unique name of this view on the page.
    """
    view(
        payload,
        selected_node(key),
        lambda node: select(key, node),
        color_by=color_by,
        height=height,
        key=f"{key} {place}",
    )


def draw_findings(findings: Sequence[Finding], *, ran: bool = True) -> None:
    """Draw each finding as an expander. Without findings, draw a list of the checked rules."""
    if not findings:
        if not ran:
            return
        # The rules are read only when needed, because the first page does not need them.
        checks = [rule for rule in graphviz_torch.rules() if "find" in rule.sources]
        title = translated("{count} rules: nothing found").format(count=len(checks))
        with st.expander(title, icon=":material/check:"):
            st.markdown(
                "\n".join(
                    f"- {text.prose(chinese_summary(rule.id) or rule.summary)}" for rule in checks
                )
            )
        return
    for finding in findings[:_MAX_LINES]:
        with st.expander(text.escape(finding.message), icon=_ICONS[finding.severity]):
            st.markdown(_details(finding))
    if len(findings) > _MAX_LINES:
        with st.expander(text.count(len(findings) - _MAX_LINES, "more finding")):
            for finding in findings[_MAX_LINES:_MAX_FINDINGS]:
                markdown = f"**{text.escape(finding.message)}**  \n{_details(finding)}"
                _SHOW[finding.severity](markdown, icon=_ICONS[finding.severity])
            if len(findings) > _MAX_FINDINGS:
                st.caption(f"{len(findings) - _MAX_FINDINGS:,} more are in the download.")


def _details(finding: Finding) -> str:
    """Return advice, rule, cause and line of a finding as Markdown.

    On a Chinese page, the rule's summary is first, because message and advice are in English.
    """
    summary = chinese_summary(finding.rule)
    facts = [finding.rule, finding.cause and f"cause: {finding.cause}", finding.where]
    prose = [text.prose(part) for part in (summary, finding.advice) if part]
    return "  \n".join([*prose, f":small[{text.escape(' · '.join(filter(None, facts)))}]"])


def draw_gradients(graph: Graph, *, key: str) -> None:
    """Draw a table with the value and gradient of every leaf, or of every node, as chosen."""
    small = len(graph.nodes) <= _SMALL_GRAPH
    label = translated("Every node, in the order of backward")
    every = st.toggle(label, small, key=f"{key} every")
    rows: list[dict[str, Any]] = []
    nodes: list[int | None] = []
    if every:
        for node in sorted((n for n in graph.nodes if n.grad_outputs), key=_order):
            rows.append(_gradient_row(name(node), _meta(node), node) | _time(node))
            nodes.append(node.id)
    else:
        for title, node_id, meta in leaves(graph):
            rows.append(
                _gradient_row(title, meta, graph.nodes[node_id] if node_id is not None else None)
            )
            nodes.append(node_id)
    for column in ("value", "NaN, Inf", "time"):  # remove a column that is empty in all rows
        cells = [row[column] for row in rows if column in row]
        if not any(cell[1] if isinstance(cell, tuple) else cell for cell in cells):
            for row in rows:
                row.pop(column, None)
    table(rows, nodes, key=key, place="gradients", label="Gradients", helps=_GRADIENT_HELPS,
          spare=("largest", "zeros", "time"))  # fmt: skip


def leaves(graph: Graph) -> list[tuple[str, int | None, TensorMeta | None]]:
    """Return (name, node, shape) of each leaf: inputs first, then parameters in model order."""
    parameters = {p.node: p for p in graph.parameters if p.node is not None}
    inputs = [n for n in graph.nodes if n.leaf and n.id not in parameters]
    known = [p for p in graph.parameters if p.requires_grad]
    return [
        *((name(node), node.id, _meta(node)) for node in inputs),
        *((p.name, p.node, p.tensor) for p in known),
    ]


_GRADIENT_HELPS = {
    "value": "The node's output, if it is small",
    "gradient": "The gradient if it is small, otherwise its L2 norm. Sorted by the norm",
    "largest": "Largest absolute value of the gradient",
    "zeros": "Fraction of the gradient's elements that are 0",
    "NaN, Inf": "Number of the gradient's elements that are not finite",
    "time": "Time in backward, measured by the device's clock",
}


def _gradient_row(title: str, meta: TensorMeta | None, node: Node | None) -> dict[str, Any]:
    stats = None if node is None else _first(node)
    computed = [] if node is None else [v for v in node.values if v and len(v) <= _MAX_VALUES]
    row: dict[str, Any] = {"tensor": title, "value": node.value_text if node and computed else ""}
    if stats is None:
        none = ("", None)
        row |= {
            "gradient": (translated("none"), None),
            "largest": none,
            "zeros": none,
            "NaN, Inf": none,
        }
        return {**row, "shape": str(meta or "")}
    small = stats.values and len(stats.values) <= _MAX_VALUES
    spelled = stats.value_text if small else f"{translated('norm')} {stats.norm:.4g}"
    return {
        **row,
        "tensor": f"{title}, {stats.extent}" if stats.extent else title,
        "gradient": (spelled, stats.norm),
        "largest": (f"{stats.max_abs:.4g}", stats.max_abs),
        "zeros": (f"{100 * stats.zero_fraction:.0f} %", stats.zero_fraction),
        "NaN, Inf": (f"{stats.nonfinite:,}", stats.nonfinite),
        "shape": str(meta or ""),
    }


def _time(node: Node) -> dict[str, Any]:
    return {"time": ("" if node.seconds is None else text.duration(node.seconds), node.seconds)}


def _meta(node: Node) -> TensorMeta | None:
    return next((meta for meta in node.outputs if meta is not None), None)


def _first(node: Node) -> GradientStats | None:
    return next((stats for stats in node.grad_outputs if stats is not None), None)


def _order(node: Node) -> int:
    return -node.id if node.order is None else node.order


def copies(graph: Graph, *, ran: bool = True) -> str:
    """Return the number and bytes of copies in forward and backward, as Markdown.

    Args:
        graph: the graph.
        ran: False if only forward has run; the copies in backward are then predicted.
    """
    parts = []
    for when in ("in forward", "in backward", "after backward"):
        those = [transfer for transfer in graph.transfers if transfer.phase_text == when]
        if those:
            moved = text.size(sum(transfer.nbytes or 0 for transfer in those))
            template = "**1 copy** {when} ({moved})"
            if when == "in backward" and not ran:
                template = "**{count:,} more** expected in backward ({moved})"
            elif len(those) > 1:
                template = "**{count:,} copies** {when} ({moved})"
            number = {"count": len(those), "moved": moved}
            parts.append(translated(template).format(when=translated(when), **number))
    if parts:
        return translated(", ").join(parts) + translated(".")
    if any(node.grad_outputs or node.order is not None for node in graph.nodes):
        return translated("None: every tensor stayed on its device.")
    return translated("None." if not ran else "Copies were not recorded.")


def draw_transfers(graph: Graph, *, key: str, ran: bool = True) -> None:
    """Draw a summary of the copies between devices, and a table of them."""
    st.markdown(copies(graph, ran=ran))
    table(
        [transfer_row(graph, transfer, ran) for transfer in graph.transfers],
        [transfer.node for transfer in graph.transfers],
        key=key,
        place="transfers",
        label="Copies between devices",
        helps=_TRANSFER_HELPS,
        spare=("tensor", "host memory", "time"),
        announced=[i for i, t in enumerate(graph.transfers) if t.phase == "backward" and not ran],
    )


_TRANSFER_HELPS = {
    "direction": "HtoD: to an accelerator. DtoH: back to the CPU. DtoD: between accelerators",
    "node": "The node of the copy; outside: the copy is not part of the graph",
    "line": "The line of the program that made the copy",
}


def transfer_row(graph: Graph, transfer: Transfer, ran: bool) -> dict[str, Any]:
    """Return the table row of a copy, with the most important columns first.

    Args:
        graph: the graph.
        transfer: the copy.
        ran: whether backward has run.
    """
    node = graph.nodes[transfer.node] if transfer.node is not None else None
    coming = transfer.phase == "backward" and not ran
    row: dict[str, Any] = {
        "direction": transfer.kind,
        "from → to": f"{transfer.source} → {transfer.target}",
        "bytes": (text.size(transfer.nbytes), transfer.nbytes),
        "phase": translated("to come" if coming else transfer.phase_text.removeprefix("in ")),
        "node": name(node) if node else translated("outside"),
        "line": transfer.where,
        "tensor": " ".join(filter(None, (transfer.label, str(transfer.tensor)))),
    }
    if any(each.pinned is not None for each in graph.transfers):
        pinned = transfer.pinned
        row["host memory"] = (
            "" if pinned is None else translated("pinned" if pinned else "pageable")
        )
    if any(each.seconds is not None for each in graph.transfers):
        seconds = transfer.seconds
        row["time"] = ("" if seconds is None else text.duration(seconds), seconds)
    return row
