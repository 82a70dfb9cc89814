"""Forward and backward on one axis, a lane for each device, transfers between the lanes."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import altair as alt
import streamlit as st

from app.panels.selection import name, select, selected
from graphviz_torch import Graph

_MOST_STEPS = 1_500  # more are thinned out: a chart cannot show them apart
_MOST_TRANSFERS = 300
_ASIDE = 0.4  # of a step
_COPY = "#e0701c"  # stands out on light and on dark
_ARROWS = {"HtoD": "→ accelerator", "DtoH": "→ CPU", "DtoD": "accelerator → accelerator"}


def draw_timeline(graph: Graph, *, key: str) -> None:
    """Each step as a tick on its device's lane, each transfer as an arrow from lane to lane.

    The axis is order, not time: forward by position in the graph, then backward as it ran.
    """
    steps, transfers, left_out = _events(graph, selected(key))
    if not steps:
        return
    widget = f"{key} timeline"

    def chosen() -> None:
        picked = st.session_state[widget]["selection"].get("pick")
        select(key, picked[0]["node"] if picked else None)

    st.altair_chart(
        _chart(steps, transfers), key=widget, on_select=chosen, alt="Order of steps and transfers"
    )
    note = "Order, not time: forward on the left, backward on the right. A click selects the node."
    st.caption(note + (f" {left_out:,} more are not drawn." if left_out else ""))


def _events(
    graph: Graph, node: int | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Rows for steps and transfers, and how many were left out."""
    ran = [n for n in graph.nodes if n.order is not None]
    start = len(graph.nodes) + 1
    at = {n.id: start + (n.order or 0) for n in ran}
    forward = [n for n in graph.nodes if not n.leaf]
    steps = [
        {
            "step": place,
            "device": n.device or "no device",
            "phase": phase,
            "what": name(n),
            "node": n.id,
            "selected": n.id == node,
        }
        for phase, nodes in (("forward", forward), ("backward", ran))
        for n in nodes
        for place in [n.id if phase == "forward" else at[n.id]]
    ]
    every = -(-len(steps) // _MOST_STEPS) if steps else 1
    rows = []
    before = sum(1 for _ in takewhile(lambda t: t.node is None, graph.transfers[:_MOST_TRANSFERS]))
    last = {"forward": -_ASIDE * (before + 1), "backward": start - 1.0}
    for transfer in graph.transfers[:_MOST_TRANSFERS]:
        # A copy outside the graph stands a little behind what came before it.
        place = last[transfer.phase] + _ASIDE
        if transfer.node is not None:
            inside = at.get(transfer.node) if transfer.phase == "backward" else transfer.node
            place = place if inside is None else inside
        last[transfer.phase] = place
        rows.append(
            {
                "step": place,
                "device": transfer.target,
                "source": transfer.source,
                "phase": transfer.phase,
                "direction": f"{transfer.kind} {_ARROWS[transfer.kind]}",
                "bytes": transfer.nbytes or 0,
                "what": transfer.label or str(transfer.tensor),
                "line": transfer.where,
                "node": -1 if transfer.node is None else transfer.node,
                "selected": transfer.node is not None and transfer.node == node,
            }
        )
    kept = steps[::every]
    return kept, rows, len(steps) - len(kept) + len(graph.transfers) - len(rows)


def _chart(steps: list[dict[str, Any]], transfers: list[dict[str, Any]]) -> Any:
    lanes = sorted(
        {
            str(row[end])
            for row in [*steps, *transfers]
            for end in ("device", "source")
            if end in row
        },
        key=lambda lane: (lane != "cpu", lane),
    )
    for row in transfers:
        down = lanes.index(row["device"]) >= lanes.index(row["source"])
        row["arrow"] = "triangle-down" if down else "triangle-up"
    axis = alt.Axis(labels=False, ticks=False, grid=False)
    # Room at both ends, for marks that stand there.
    scale = alt.Scale(nice=False, zero=False, padding=14)
    x = alt.X("step:Q", title="order", axis=axis, scale=scale)
    lane = alt.Y("device:N", sort=lanes, title=None, scale=alt.Scale(domain=lanes))
    pick = alt.selection_point(name="pick", fields=["node"], empty=False)
    thick = alt.condition("datum.selected", alt.value(1.0), alt.value(0.6))
    ticks = (
        alt.Chart({"values": steps})
        .mark_tick(size=16, thickness=4)
        .encode(
            x=x,
            y=lane,
            color=alt.Color(
                "phase:N",
                title=None,
                scale=alt.Scale(domain=["forward", "backward"], range=["#8794a1", "#3a94d0"]),
                legend=alt.Legend(orient="top"),
            ),
            opacity=thick,
            size=alt.condition("datum.selected", alt.value(30), alt.value(16)),
            tooltip=["what:N", "phase:N", "device:N"],
        )
    )
    copies = alt.Chart({"values": transfers})
    tooltip = ["direction:N", "bytes:Q", "phase:N", "what:N", "line:N"]
    lines = copies.mark_rule(color=_COPY, strokeWidth=2).encode(
        x=x, y=alt.Y("source:N", sort=lanes), y2="device:N", opacity=thick, tooltip=tooltip
    )
    heads = copies.mark_point(color=_COPY, filled=True, size=130, opacity=1).encode(
        x=x,
        y=lane,
        shape=alt.Shape("arrow:N", scale=None),
        size=alt.condition("datum.selected", alt.value(320), alt.value(130)),
        tooltip=tooltip,
    )
    return alt.layer(ticks, lines, heads).add_params(pick).properties(height=70 + 46 * len(lanes))
