"""The step that cuts edges which make a layout hard into pairs of labelled stubs.

An edge over n ranks costs Graphviz n - 1 invisible nodes, and almost all of its time goes into
placing those: a dense block of 100 layers has half a million.
"""

from __future__ import annotations

from .drawing import Drawing

# Invisible nodes that a layout may have: so many, and so many for each visible thing.
_FREE = 100
_FREE_EACH = 1
_LONG = 5  # ranks; a shorter edge is always drawn
# With fewer edges than this there is nothing to untangle.
_FEW = 60


def shorten_edges(drawing: Drawing) -> Drawing:
    """The drawing without its longest edges, until the rest can be laid out quickly."""
    edges, lines = drawing.edges, drawing.lines
    if len(edges) + len(lines) < _FEW:
        return drawing
    rank = _ranks_in_circles(drawing) if drawing.keys else _ranks(drawing)
    free = _FREE + _FREE_EACH * (len(drawing.nodes) + len(drawing.boxes))
    length = sum([rank[edge.target] - rank[edge.source] for edge in edges]) - len(edges)
    if length + sum([rank[line.target] - rank[line.source] - 1 for line in lines]) <= free:
        return drawing
    ends = drawing.ends
    _pull(rank, ends)
    spans = [rank[target] - rank[source] - 1 for source, target in ends]
    excess = sum(span for span in spans if span > 0) - free
    cut: set[int] = set()
    for i in sorted(range(len(spans)), key=lambda i: -spans[i]):
        if excess <= 0 or spans[i] < _LONG:
            break
        excess -= spans[i]
        cut.add(i)
    before, behind = ({k: [*v] for k, v in d.items()} for d in (drawing.before, drawing.behind))
    for i in sorted(cut):
        source, target = ends[i]
        for named, key, other in ((before, target, source), (behind, source, target)):
            others = named.setdefault(key, [])
            if other not in others:
                others.append(other)
    return drawing.having(
        edges=tuple([edge for i, edge in enumerate(edges) if i not in cut]),
        lines=tuple([line for i, line in enumerate(lines, len(edges)) if i not in cut]),
        before=before,
        behind=behind,
    )


def _ranks(drawing: Drawing) -> dict[int, int]:
    """About the rank that Graphviz gives each node: the longest way to it from an input.

    It is for a drawing of every node, in which an edge runs from a node to a later one.
    """
    rank = dict.fromkeys(drawing.nodes, 0)
    again = True
    while again:  # once is enough where edges come in the order of their targets, as they do
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
    """Move what is read late next to its first user, where that makes no edges longer in sum."""
    sources: dict[int, list[int]] = {}
    users: dict[int, list[int]] = {}
    for source, target in ends:
        sources.setdefault(target, []).append(source)
        users.setdefault(source, []).append(target)
    for key in sorted(users, key=rank.__getitem__, reverse=True):
        if len(sources.get(key, ())) <= len(users[key]):
            rank[key] = max(rank[key], min(rank[user] for user in users[key]) - 1)


def _ranks_in_circles(drawing: Drawing) -> dict[int, int]:
    """The same for a drawing with groups, closed or drawn for several: they can make a circle."""
    keys = [*drawing.nodes, *(~number for number in drawing.boxes)]
    users: dict[int, list[int]] = {key: [] for key in keys}
    waiting = dict.fromkeys(keys, 0)
    for source, target in drawing.ends:
        users[source].append(target)
        waiting[target] += 1
    # In a circle, what waits for itself keeps the rank it had by then.
    rank = dict.fromkeys(keys, 0)
    ready = [key for key in keys if not waiting[key]]
    for key in ready:
        for user in users[key]:
            rank[user] = max(rank[user], rank[key] + 1)
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return rank
