"""Drawing step: replace a long edge with two texts, each of which names the edge's other end.

Graphviz splits an edge over n ranks at n - 1 invisible nodes, and spends most of its time on
placing them. A dense block of 100 layers leads to half a million invisible nodes. Without the
longest edges, the layout remains fast.
"""

from __future__ import annotations

from .drawing import Drawing

# A layout may have this many invisible nodes, and a few more for each box.
_MAX_INVISIBLE = 100
_MAX_INVISIBLE_PER_BOX = 1
_MIN_RANKS_CUT = 5  # an edge over fewer ranks is always drawn
_MIN_EDGES = 60  # a drawing with fewer edges keeps all of them


def shorten_edges(drawing: Drawing) -> Drawing:
    """Replace the longest edges with texts at both ends, and return the new drawing."""
    edges, lines = drawing.edges, drawing.merged_edges
    if len(edges) + len(lines) < _MIN_EDGES:
        return drawing
    rank = ranks_with_cycles(drawing) if drawing.keys else _ranks(drawing)
    free = _MAX_INVISIBLE + _MAX_INVISIBLE_PER_BOX * (len(drawing.nodes) + len(drawing.boxes))
    length = sum([rank[edge.target] - rank[edge.source] for edge in edges]) - len(edges)
    if length + sum([rank[line.target] - rank[line.source] - 1 for line in lines]) <= free:
        return drawing
    ends = drawing.ends
    _pull(rank, ends)
    spans = [rank[target] - rank[source] - 1 for source, target in ends]
    excess = sum(span for span in spans if span > 0) - free
    cut: set[int] = set()
    for i in sorted(range(len(spans)), key=lambda i: -spans[i]):
        if excess <= 0 or spans[i] < _MIN_RANKS_CUT:
            break
        excess -= spans[i]
        cut.add(i)
    before, behind = (
        {k: [*v] for k, v in d.items()} for d in (drawing.named_sources, drawing.named_targets)
    )
    for i in sorted(cut):
        source, target = ends[i]
        for named, key, other in ((before, target, source), (behind, source, target)):
            others = named.setdefault(key, [])
            if other not in others:
                others.append(other)
    return drawing.having(
        edges=tuple([edge for i, edge in enumerate(edges) if i not in cut]),
        merged_edges=tuple([line for i, line in enumerate(lines, len(edges)) if i not in cut]),
        named_sources=before,
        named_targets=behind,
    )


def _ranks(drawing: Drawing) -> dict[int, int]:
    """Return an approximate rank of each node in Graphviz: its longest path from an input.

    The drawing must have no groups, so that edges go from lower to higher ids.
    """
    rank = dict.fromkeys(drawing.nodes, 0)
    again = True
    while again:  # one iteration is enough if the edges are sorted by target, as usual
        again = False
        done = -1
        for edge in drawing.edges:
            source, target = edge.source, edge.target
            if rank[source] >= rank[target]:
                rank[target] = rank[source] + 1
                again = again or target < done
            done = target
    return rank


def _pull(rank: dict[int, int], ends: list[tuple[int, int]]) -> None:
    """Move each element to the rank just before its first user.

    An element with more sources than users is not moved, because its edges would become longer in
    total.
    """
    sources: dict[int, list[int]] = {}
    users: dict[int, list[int]] = {}
    for source, target in ends:
        sources.setdefault(target, []).append(source)
        users.setdefault(source, []).append(target)
    for key in sorted(users, key=rank.__getitem__, reverse=True):
        if len(sources.get(key, ())) <= len(users[key]):
            rank[key] = max(rank[key], min(rank[user] for user in users[key]) - 1)


def ranks_with_cycles(drawing: Drawing) -> dict[int, int]:
    """Return the approximate rank (row in the layout) of each key, even if edges form cycles."""
    keys = [*drawing.nodes, *(~number for number in drawing.boxes)]
    users: dict[int, list[int]] = {key: [] for key in keys}
    waiting = dict.fromkeys(keys, 0)
    for source, target in drawing.ends:
        users[source].append(target)
        waiting[target] += 1
    # An element of a cycle never becomes ready. It keeps the rank that its other sources gave it.
    rank = dict.fromkeys(keys, 0)
    ready = [key for key in keys if not waiting[key]]
    for key in ready:
        for user in users[key]:
            rank[user] = max(rank[user], rank[key] + 1)
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return rank
