"""Edges that make a layout hard become pairs of labelled stubs.

An edge over n ranks costs Graphviz n - 1 invisible nodes, and almost all of its time goes into
placing those: a dense block of 100 layers has half a million.
"""

from __future__ import annotations

from .visible import Visible

# Invisible nodes that a layout may have: so many, and so many for each visible thing.
_FREE = 400
_FREE_EACH = 3
_LONG = 8  # ranks; a shorter edge is always drawn
# With fewer edges than this there is nothing to untangle.
_FEW = 60


def untangle(drawn: Visible) -> None:
    """Replace the longest edges until the rest can be laid out quickly."""
    if len(drawn.edges) + len(drawn.lines) < _FEW:
        return
    ends = drawn.ends()
    rank = _ranks(drawn, ends)
    spans = [rank[target] - rank[source] - 1 for source, target in ends]
    excess = sum(span for span in spans if span > 0) - _FREE - _FREE_EACH * len(rank)
    if excess <= 0:
        return
    cut: set[int] = set()
    for i in sorted(range(len(spans)), key=lambda i: -spans[i]):
        if excess <= 0 or spans[i] < _LONG:
            break
        excess -= spans[i]
        cut.add(i)
    for i in sorted(cut):
        source, target = ends[i]
        drawn.before.setdefault(target, []).append(source)
        drawn.behind.setdefault(source, []).append(target)
    whole = len(drawn.edges)
    drawn.lines = [line for i, line in enumerate(drawn.lines) if i + whole not in cut]
    drawn.edges = [edge for i, edge in enumerate(drawn.edges) if i not in cut]


def _ranks(drawn: Visible, ends: list[tuple[int, int]]) -> dict[int, int]:
    """About the rank that Graphviz gives: the longest way from an input, inputs next to users."""
    if drawn.boxes:
        rank = _ranks_of_any(drawn, ends)
    else:
        rank = dict.fromkeys(drawn.nodes, 0)
        for source, target in sorted(ends, key=lambda end: end[1]):  # ids are in order
            if rank[source] >= rank[target]:
                rank[target] = rank[source] + 1
    near: dict[int, int] = {}
    for source, target in ends:
        if not rank[source] and rank[target] <= near.get(source, rank[target]):
            near[source] = rank[target]
    for source, first in near.items():
        rank[source] = first - 1
    return rank


def _ranks_of_any(drawn: Visible, ends: list[tuple[int, int]]) -> dict[int, int]:
    keys = [*drawn.nodes, *(~number for number in drawn.boxes)]
    users: dict[int, list[int]] = {key: [] for key in keys}
    waiting = dict.fromkeys(keys, 0)
    for source, target in ends:
        users[source].append(target)
        waiting[target] += 1
    # Closed groups can make a circle: what waits for itself keeps the rank it had by then.
    rank = dict.fromkeys(keys, 0)
    ready = [key for key in keys if not waiting[key]]
    for key in ready:
        for user in users[key]:
            rank[user] = max(rank[user], rank[key] + 1)
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return rank
