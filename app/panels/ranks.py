"""Draw the collectives between ranks, and the shards of parameters on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from graphviz_torch import Graph
from graphviz_torch.graph import Collective

from . import text
from .linked import name, table


def draw_collectives(graph: Graph, *, key: str) -> None:
    """Draw a summary of this rank's collectives, and a table in program order.

    Args:
        graph: a graph.
        key: key of the selection.
    """
    st.markdown(collectives_text(graph.collectives))
    rows = [_row(graph, number, each) for number, each in enumerate(graph.collectives, 1)]
    table(
        rows,
        [each.node for each in graph.collectives],
        key=key,
        place="collectives",
        label="Collectives between ranks",
        helps=_HELPS,
        spare=("ranks", "node"),
    )


def collectives_text(collectives: Sequence[Collective]) -> str:
    """Return the numbers and bytes of collectives by phase, as Markdown."""
    parts = []
    for phase in dict.fromkeys(each.phase for each in collectives):
        those = [each for each in collectives if each.phase == phase]
        number = text.count(len(those), "collective")
        where = "" if phase == "other" else f" in {phase}"
        parts.append(f"**{number}**{where} ({text.size(sum(each.nbytes for each in those))})")
    return ", ".join(parts) + "." if parts else "None: this rank called no collective."


def draw_parts(ranks: Sequence[tuple[str, Graph]]) -> None:
    """Draw a row for each parameter, with the parameter's placement on each rank."""
    rows: dict[str, dict[str, str]] = {}
    for rank, graph in ranks:
        for parameter in graph.parameters:
            row = rows.setdefault(
                parameter.name, {"parameter": parameter.name, "shape": str(parameter.tensor)}
            )
            row[rank] = parameter.placement or "whole"
    st.table([{k: text.escape(v) for k, v in row.items()} for row in rows.values()])


_HELPS = {
    "#": "Position in the order of the program",
    "bytes": "Bytes of this rank's input tensors",
    "for": "The parameters whose values or gradients are communicated, or the DTensor's placements",
    "line": "The line of the program that called it",
}


def _row(graph: Graph, number: int, each: Collective) -> dict[str, Any]:
    node = None if each.node is None else graph.nodes[each.node]
    group = each.group or "all"
    return {
        "#": (f"{number}", number),
        "collective": each.kind,
        "bytes": (text.size(each.nbytes), each.nbytes),
        "phase": each.phase,
        "module": each.module,
        "for": each.change or ", ".join(each.parameters),
        "line": each.where,
        "ranks": f"{group}, {each.group_size}",
        "node": name(node) if node else "",
    }
