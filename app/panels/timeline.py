"""Draw a timeline of forward and backward: a row for each device, and copies between rows."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from graphviz_torch import Graph
from graphviz_torch.graph import Transfer

from .language import translated
from .linked import draw_linked, name
from .text import size

_MAX_STEPS = 600  # largest number of steps in a timeline
_MAX_COPIES = 200
_OFFSET = 0.4  # offset of a copy that has no node in the graph, in steps


def draw_timeline(graph: Graph, *, key: str, ran: bool = True) -> int:
    """Draw each step as a tick in the row of its device, and each copy as an arrow between rows.

    The horizontal axis is not time but the order of steps: first forward, in the order of the
    graph's nodes, then backward, in the order in which it ran the nodes.

    Returns:
        The number of steps and copies that were left out.
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
    draw_linked("timeline", data, key=key, place="timeline")
    return left_out


def events(
    graph: Graph, *, ran: bool = True
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the chart's rows: the nodes that ran, the copies, and the number of rows left out."""
    done = [n for n in graph.nodes if n.order is not None]
    start = len(graph.nodes) + 1
    at = {n.id: start + (n.order or 0) for n in done}
    if not ran:  # backward has not run yet, so use the expected order
        at = {n.id: start + len(graph.nodes) - n.id for n in graph.nodes}
    forward = [n for n in graph.nodes if not n.leaf]
    steps = [("forward", n) for n in forward] + [("backward", n) for n in done]
    every = -(-len(steps) // _MAX_STEPS) if steps else 1
    shown = [
        {
            "step": n.id if phase == "forward" else at[n.id],
            "device": n.device or "no device",
            "phase": phase,
            "label": translated("{name}, {phase}, on {device}").format(
                name=name(n)[:80], phase=translated(phase), device=n.device or "no device"
            ),
            "node": n.id,
        }
        for phase, n in steps[::every]
    ]
    rows = []
    outside = [t for t in graph.transfers[:_MAX_COPIES] if not t.after_backward]
    before = sum(1 for _ in takewhile(lambda t: t.node is None, outside))
    # "forward" or "backward" -> position of its last step or copy
    last = {"forward": -_OFFSET * (before + 1), "backward": start - 1.0}
    last["after backward"] = max(at.values(), default=start - 1.0)
    for transfer in graph.transfers[:_MAX_COPIES]:
        # A copy without a node in the graph is drawn a little to the right of the previous step.
        stage = transfer.phase_text.removeprefix("in ")
        place = last[stage] + _OFFSET
        if transfer.node is not None:
            inside = at.get(transfer.node) if transfer.phase == "backward" else transfer.node
            place = place if inside is None else inside
        last[stage] = place
        rows.append(
            {
                "step": place,
                "device": transfer.target,
                "source": transfer.source,
                "phase": stage,
                "label": _label(transfer, ran),
                "node": transfer.node,
                "announced": transfer.phase == "backward" and not ran,
            }
        )
    return shown, rows, len(steps) - len(shown) + len(graph.transfers) - len(rows)


def _label(transfer: Transfer, ran: bool) -> str:
    coming = transfer.phase == "backward" and not ran
    when = translated("expected in backward" if coming else transfer.phase_text)
    what = (transfer.label or str(transfer.tensor))[:80]
    ends = f"{transfer.source} → {transfer.target}"
    return translated("Copy of {what}, {ends}, {size}, {when}").format(
        what=what, ends=ends, size=size(transfer.nbytes), when=when
    )
