"""Which node of one graph is which of another: by structure, labels and modules, not by position.

Hashes over all that a node was computed from (down) and all that was computed from it (up) match
what did not change, labels and scopes what is called the same; from there the pairs grow along the
edges, and what is left in the gaps is aligned in order. Shapes, dtypes and devices play no part,
so a node that changed keeps its pair.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence

from .graph import Graph

# Differences after which a gap counts as rewritten: the alignment's time is its size times these.
_MAX_EDITS = 400


class _Side:
    """One graph with its edges by node."""

    def __init__(self, graph: Graph) -> None:
        self.nodes, self.inputs, self.users = graph.nodes, graph.inputs(), graph.users()
        ends: list[list[int]] = [[] for _ in graph.nodes]
        for place, (node, output_nr) in enumerate(graph.outputs):
            ends[node].append(place << 8 | output_nr)
        names = [node.name for node in graph.nodes]
        called = [(n.name, n.label, n.scope, *e) for n, e in zip(graph.nodes, ends, strict=True)]
        shapes = [tuple(meta and meta.shape for meta in n.outputs) for n in graph.nodes]
        # From the most that can be equal to the least.
        self._keys: list[Sequence[Hashable]] = [
            list(zip(called, shapes, strict=True)),
            called,
            list(zip(names, shapes, strict=True)),
            names,
        ]
        self.levels = range(len(self._keys))

    def hashes(self, level: int) -> tuple[list[int], list[int]]:
        """For each node a hash of what it was computed from, and of what was computed from it."""
        keys = self._keys[level]
        down = [0] * len(keys)
        for i, key in enumerate(keys):
            edges = self.inputs[i]
            down[i] = hash((key, *((down[e.source], e.output_nr, e.input_nr) for e in edges)))
        up = [0] * len(keys)
        for i in reversed(range(len(keys))):
            edges = self.users[i]
            up[i] = hash((keys[i], *sorted((up[e.target], e.output_nr, e.input_nr) for e in edges)))
        return down, up


def match(a: Graph, b: Graph) -> dict[int, int]:
    """The id in `b` of each node of `a` that is also there; every node is in at most one pair."""
    return _Matching(_Side(a), _Side(b)).run()


class _Matching:
    def __init__(self, a: _Side, b: _Side) -> None:
        self.a, self.b = a, b
        self.to_b: dict[int, int] = {}
        self.to_a: dict[int, int] = {}

    def run(self) -> dict[int, int]:
        first, *rest = self.a.levels
        self._by_hashes(first)
        self._by(lambda s, i: (s.nodes[i].name, s.nodes[i].label) if s.nodes[i].label else None)
        self._by(lambda s, i: (s.nodes[i].name, s.nodes[i].scope) if s.nodes[i].scope else None)
        for level in rest:
            self._by_hashes(level)
        # Leaves first: what uses a named weight is surer than what follows an equal neighbour.
        self._grow([(i, j) for i, j in self.to_b.items() if self.a.nodes[i].leaf])
        self._grow(list(self.to_b.items()))
        self._fill_gaps()
        return self.to_b

    @property
    def _complete(self) -> bool:
        """True if one side has nothing left to pair."""
        return len(self.to_b) in (len(self.a.nodes), len(self.b.nodes))

    def _by_hashes(self, level: int) -> None:
        if self._complete:
            return
        hashes = {side: side.hashes(level) for side in (self.a, self.b)}
        self._by(lambda s, i: (hashes[s][0][i], hashes[s][1][i]), several=True)
        self._by(lambda s, i: hashes[s][0][i])
        self._by(lambda s, i: hashes[s][1][i])

    def _pair(self, pairs: list[tuple[int, int]]) -> None:
        for i, j in pairs:
            self.to_b[i], self.to_a[j] = j, i

    def _by(self, key: Callable[[_Side, int], Hashable], several: bool = False) -> None:
        """Pairs the unmatched nodes whose key occurs once on each side.

        Where a key occurs as often on both sides, `several` pairs its nodes in order.
        """
        if self._complete:
            return
        groups: list[dict[Hashable, list[int]]] = []
        for side, matched in ((self.a, self.to_b), (self.b, self.to_a)):
            group: dict[Hashable, list[int]] = {}
            for i in range(len(side.nodes)):
                if i not in matched and (found := key(side, i)) is not None:
                    group.setdefault(found, []).append(i)
            groups.append(group)
        for found, left in groups[0].items():
            right = groups[1].get(found, [])
            if len(left) == len(right) and (several or len(left) == 1):
                self._pair(list(zip(left, right, strict=True)))

    def _grow(self, seeds: list[tuple[int, int]]) -> None:
        """Pairs the neighbours of pairs: the same input, or the only such user, of one name."""
        queue = deque(seeds)
        while queue and not self._complete:
            i, j = queue.popleft()
            for neighbours in (_sources, _targets):
                right = neighbours(self.b, j)
                for key, x in neighbours(self.a, i).items():
                    y = right.get(key)
                    if x is None or y is None or x in self.to_b or y in self.to_a:
                        continue
                    if self.a.nodes[x].leaf and self.a.nodes[x].label != self.b.nodes[y].label:
                        continue
                    self._pair([(x, y)])
                    queue.append((x, y))

    def _fill_gaps(self) -> None:
        """Aligns what is unmatched between pairs that stand in the same order on both sides."""
        if self._complete:
            return
        fresh: list[tuple[int, int]] = []
        start = begin = 0
        ends = (len(self.a.nodes), len(self.b.nodes))
        for end, stop in [*_increasing(sorted(self.to_b.items())), ends]:
            left = [i for i in range(start, end) if i not in self.to_b]
            right = [j for j in range(begin, stop) if j not in self.to_a]
            found = align([_key(self.a, i) for i in left], [_key(self.b, j) for j in right])
            fresh.extend((left[p], right[q]) for p, q in found)
            start, begin = end + 1, stop + 1
        self._pair(fresh)
        self._grow(fresh)


def _sources(side: _Side, node: int) -> dict[Hashable, int | None]:
    return {(side.nodes[e.source].name, e.input_nr): e.source for e in side.inputs[node]}


def _targets(side: _Side, node: int) -> dict[Hashable, int | None]:
    found: dict[Hashable, int | None] = {}
    for e in side.users[node]:
        key = (side.nodes[e.target].name, e.output_nr, e.input_nr)
        found[key] = None if key in found else e.target  # several: none is told from the others
    return found


def _key(side: _Side, node: int) -> Hashable:
    value = side.nodes[node]
    return (value.name, value.label if value.leaf else "")


def _increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs, sorted by the first, in which the second grows too."""
    tails: list[int] = []
    at: list[int] = []
    back: list[int] = []
    for place, (_, j) in enumerate(pairs):
        length = bisect_left(tails, j)
        back.append(at[length - 1] if length else -1)
        tails[length : length + 1] = [j]
        at[length : length + 1] = [place]
    found = []
    place = at[-1] if at else -1
    while place >= 0:
        found.append(pairs[place])
        place = back[place]
    return found[::-1]


def align(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Positions of a longest common subsequence (Myers 1986); of a rewritten one, a greedy guess.

    >>> align("xabc", "abyc")
    [(1, 0), (2, 1), (3, 3)]
    """
    if not a or not b:
        return []
    reach: dict[int, int] = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), _MAX_EDITS) + 1):
        history.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
            x = reach[k + 1] if down else reach[k - 1] + 1
            while x < len(a) and x - k < len(b) and a[x] == b[x - k]:
                x += 1
            reach[k] = x
            if x >= len(a) and x - k >= len(b):
                return _trace_back(history, len(a), len(b))
    return _greedy(a, b)


def _trace_back(history: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in reversed(range(len(history))):
        reach, k = history[edits], x - y
        down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
        before = k + 1 if down else k - 1
        start = reach[before]
        while x > start and y > start - before:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = start, start - before
    return pairs[::-1]


def _greedy(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The n-th occurrence of a key with the n-th on the other side."""
    places = {(key, n): j for j, (key, n) in enumerate(_counted(b))}
    return [(i, places[each]) for i, each in enumerate(_counted(a)) if each in places]


def _counted(keys: Sequence[Hashable]) -> list[tuple[Hashable, int]]:
    seen: Counter[Hashable] = Counter()
    found = []
    for key in keys:
        found.append((key, seen[key]))
        seen[key] += 1
    return found
