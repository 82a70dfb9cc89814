"""`to_chrome_trace`: measured times of backward, copies and collectives, for Perfetto.

Only measured times are written. A recording measures the duration of each node of backward and,
with `record(clock=True)`, of each copy on CUDA. Start times and the forward pass are not measured.
In the trace, the nodes therefore follow each other without gaps, in the order in which they ran. A
collective in backward is an instant event at the end of its node. Measured durations of collectives
are in a second process of the trace, with one track per rank and one time axis for all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..graph import Collective, GraphLike, graph_of
from ..graph.collective import align_times
from ..graph.files.replacement import replacement

_MICROSECONDS = 1e6


def to_chrome_trace(graph: GraphLike, path: str | Path | None = None) -> dict[str, Any]:
    """Return the measured times as events of the Trace Event Format, and write them to `path`.

    Args:
        graph: a recording or its graph.
        path: a ".json" file to write, which ui.perfetto.dev opens.

    Returns:
        The content of the file. Times are in microseconds. One track shows the nodes of backward,
        another one the copies.

    Raises:
        ValueError: if no time was measured, as for a traced graph or a forward without backward.
        OSError: if `path` cannot be written.

    >>> from graphviz_torch import record
    >>> import torch
    >>> with record() as recording:
    ...     torch.ones(2, requires_grad=True).exp().sum().backward()
    >>> len(to_chrome_trace(recording)["traceEvents"]) > 0
    True
    """
    value = graph_of(graph)
    ran = [node for node in value.nodes if node.order is not None and node.seconds is not None]
    ran.sort(key=lambda node: node.order or 0)
    tracks: dict[str, list[tuple[str, float, dict[str, Any]]]] = {
        "backward, end to end": [
            (
                f"{node.title} {node.label}".strip(),
                node.seconds or 0.0,
                {
                    "node": node.id,
                    "autograd": node.name,
                    "module": node.module,
                    "where": node.where,
                    "outputs": ", ".join(map(str, node.outputs)),
                },
            )
            for node in ran
        ],
        "copies, end to end": [
            (
                f"{copy.kind} {copy.label}".strip(),
                copy.seconds,
                {"from": copy.source, "to": copy.target, "bytes": copy.nbytes, "at": copy.where},
            )
            for copy in value.transfers
            if copy.seconds is not None
        ],
    }
    if not any(tracks.values()):
        raise ValueError(
            "no time was measured in this graph: run backward inside "
            "`with record(model) as recording:` and pass the recording."
        )
    events: list[dict[str, Any]] = []
    for track, entries in enumerate(tracks.items()):
        name, rows = entries
        if rows:
            meta = {"name": "thread_name", "ph": "M", "pid": 0, "tid": track}
            events.append({**meta, "args": {"name": name}})
        begin = 0.0
        for title, seconds, arguments in rows:
            duration = seconds * _MICROSECONDS
            event = {"name": title, "cat": "autograd", "ph": "X", "ts": begin, "dur": duration}
            events.append({**event, "pid": 0, "tid": track, "args": arguments})
            begin += duration
    ends: dict[int, float] = {}  # node id -> time in the trace at which the node ends
    now = 0.0
    for node in ran:
        ends[node.id] = now = now + (node.seconds or 0.0) * _MICROSECONDS
    for each in value.collectives:
        if each.phase == "backward" and each.node in ends:
            about = {"module": each.module, "group": each.group, "ranks": each.group_size}
            about |= {"bytes": each.nbytes, "dtype": each.dtype, "at": each.where}
            event = {
                "name": each.kind,
                "cat": "collective",
                "ph": "i",
                "s": "t",
                "pid": 0,
                "tid": 0,
            }
            events.append({**event, "ts": ends[each.node], "args": about})
    events += _collective_events(value.collectives)
    made = {"displayTimeUnit": "ns", "traceEvents": events}
    if path is not None:
        with replacement(path) as file:
            file.write(json.dumps(made).encode())
    return made


def _collective_events(collectives: Sequence[Collective]) -> list[dict[str, Any]]:
    """Return the measured durations of collectives as events, with one track per rank."""
    rows = align_times(
        [each for each in collectives if any(t.seconds is not None for t in each.times)]
    )
    return [
        {
            "name": each.kind,
            "cat": "collective",
            "ph": "X",
            "ts": begin * _MICROSECONDS,
            "dur": seconds * _MICROSECONDS,
            "pid": 1,
            "tid": rank,
            "args": {"bytes": each.nbytes, "group": each.group, "at": each.where},
        }
        for rank, bars in rows.items()
        for begin, seconds, each in bars
    ]
