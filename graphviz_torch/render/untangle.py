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


def untangle(drawn: Visible) -> None:
    """Replace the longest edges until the rest can be laid out quickly."""
    rank = _ranks(drawn)
    spans = [max(rank[line.target] - rank[line.source] - 1, 0) for line in drawn.lines]
    excess = sum(spans) - _FREE - _FREE_EACH * len(rank)
    if excess <= 0:
        return
    order = sorted(range(len(spans)), key=lambda i: -spans[i])
    cut: set[int] = set()
    for i in order:
        if excess <= 0 or spans[i] < _LONG:
            break
        excess -= spans[i]
        cut.add(i)
    for i in sorted(cut):
        line = drawn.lines[i]
        drawn.before.setdefault(line.target, []).append(line.source)
        drawn.behind.setdefault(line.source, []).append(line.target)
    drawn.lines = [line for i, line in enumerate(drawn.lines) if i not in cut]


def _ranks(drawn: Visible) -> dict[int, int]:
    """About the rank that Graphviz gives: the longest way from an input, inputs next to users."""
    order = [*drawn.nodes, *(~number for number in drawn.boxes)]
    sources: dict[int, list[int]] = {key: [] for key in order}
    users: dict[int, list[int]] = {key: [] for key in order}
    for line in drawn.lines:
        sources[line.target].append(line.source)
        users[line.source].append(line.target)
    rank: dict[int, int] = {}
    waiting = {key: len(found) for key, found in sources.items()}
    ready = [key for key in order if not waiting[key]]
    for key in ready:
        rank[key] = max((rank[source] + 1 for source in sources[key]), default=0)
        for user in users[key]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    for key in order:
        if not sources[key] and users[key]:
            rank[key] = min((rank[user] for user in users[key] if user in rank), default=1) - 1
    # Closed groups can make a circle; what is in it has no rank of its own.
    return {key: rank.get(key, 0) for key in order}
