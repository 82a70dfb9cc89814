"""Forward and backward on one axis, a lane for each device, copies between the lanes."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from graphviz_torch import Graph
from graphviz_torch.graph import Transfer

from .language import translated
from .linked import linked
from .selection import name
from .text import size

_MOST_STEPS = 600  # more are thinned out: a chart cannot show them apart
_MOST_COPIES = 200
_ASIDE = 0.4  # of a step


def draw_timeline(graph: Graph, *, key: str, ran: bool = True) -> int:
    """Each step as a tick on its device's lane, each copy as an arrow from lane to lane.

    The axis is order, not time: forward by position in the graph, then backward as it ran.

    Returns:
        How many steps and copies were left out.
    """
    steps, copies, left_out = events(graph, ran=ran)
    if not steps and not copies:
        return 0
    places = [row["step"] for row in [*steps, *copies]]
    lanes = {row["device"] for row in [*steps, *copies]} | {row["source"] for row in copies}
    phases = []
    for phase in ("forward", "backward"):
        those = [row["step"] for row in [*steps, *copies] if row["phase"] == phase]
        if those:
            phases.append({"name": translated(phase), "from": min(those), "to": max(those)})
    data = {
        "label": translated("Order of steps and copies: forward, then backward"),
        "steps": steps,
        "copies": copies,
        "lanes": sorted(lanes, key=lambda lane: (lane != "cpu", lane)),
        "phases": phases,
        "start": min(places),
        "end": max(places),
    }
    linked("timeline", data, key=key, place="timeline")
    return left_out


def events(
    graph: Graph, *, ran: bool = True
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Rows for steps and copies, and how many were left out."""
    done = [n for n in graph.nodes if n.order is not None]
    start = len(graph.nodes) + 1
    at = {n.id: start + (n.order or 0) for n in done}
    if not ran:  # what is still to come stands in the order that it will have
        at = {n.id: start + len(graph.nodes) - n.id for n in graph.nodes}
    forward = [n for n in graph.nodes if not n.leaf]
    steps = [
        {
            "step": n.id if phase == "forward" else at[n.id],
            "device": n.device or "no device",
            "phase": phase,
            "says": translated("{name}, {phase}, on {device}").format(
                name=name(n)[:80], phase=translated(phase), device=n.device or "no device"
            ),
            "node": n.id,
        }
        for phase, nodes in (("forward", forward), ("backward", done))
        for n in nodes
    ]
    every = -(-len(steps) // _MOST_STEPS) if steps else 1
    rows = []
    before = sum(1 for _ in takewhile(lambda t: t.node is None, graph.transfers[:_MOST_COPIES]))
    last = {"forward": -_ASIDE * (before + 1), "backward": start - 1.0}
    for transfer in graph.transfers[:_MOST_COPIES]:
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
                "says": _says(transfer, ran),
                "node": transfer.node,
                "announced": transfer.phase == "backward" and not ran,
            }
        )
    shown = steps[::every]
    return shown, rows, len(steps) - len(shown) + len(graph.transfers) - len(rows)


def _says(transfer: Transfer, ran: bool) -> str:
    coming = transfer.phase == "backward" and not ran
    when = translated("expected in backward" if coming else transfer.phase)
    what = (transfer.label or str(transfer.tensor))[:80]
    ends = f"{transfer.source} → {transfer.target}"
    return translated("Copy of {what}, {ends}, {size}, {when}").format(
        what=what, ends=ends, size=size(transfer.nbytes), when=when
    )
