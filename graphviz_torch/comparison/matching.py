"""Match the nodes of two graphs by structure, labels and modules instead of by position.

Unchanged nodes are matched by two hashes: `down` is a hash of all nodes that a node depends on,
`up` a hash of all nodes that depend on the node. At first the hashes include labels, modules and
shapes. Later they include fewer of these, so that changed nodes match as well. Then the neighbors
of matched nodes are matched. The remaining nodes between two matches are aligned in order. A
module is renamed if the modules of its matched nodes have another name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence

from ..graph import Graph, Node
from ..graph.gc import with_gc_disabled

# Sequences that differ by more insertions and deletions than this are aligned approximately. The
# time of an exact alignment is proportional to this number and to the length.
_MAX_EDITS = 400
LEVELS = range(3)  # levels of comparison, from strict to loose (see `_GraphIndex.keys`)


class _GraphIndex:
    """One of the two graphs, with the incoming and outgoing edges of each node."""

    def __init__(self, graph: Graph) -> None:
        self.nodes, self.inputs, self.users = graph.nodes, graph.inputs(), graph.users()
        self.roles = [_role(node) if node.leaf else "" for node in graph.nodes]
        self._ends: list[list[int]] = [[] for _ in graph.nodes]
        for place, (node, output_nr) in enumerate(graph.outputs):
            self._ends[node].append(place << 8 | output_nr)

    def keys(self, level: int) -> Sequence[Hashable]:
        """Return a key for each node. At this level, two nodes are equal if their keys are equal.

        Level 0 compares name, shapes, label, scope and positions in `Graph.outputs`; level 1
        compares name and shapes; level 2 compares the name alone.
        """
        names = [node.name for node in self.nodes]
        if level == LEVELS[2]:
            return names
        shapes = [tuple([meta and meta.shape for meta in node.outputs]) for node in self.nodes]
        if level == LEVELS[1]:
            return list(map(hash, zip(names, shapes, strict=True)))
        labels = [(n.label, n.scope, *e) for n, e in zip(self.nodes, self._ends, strict=True)]
        return list(map(hash, zip(names, shapes, labels, strict=True)))

    def hash_inputs(self, keys: Sequence[Hashable], without: Container[int] = ()) -> list[int]:
        """Return, for each node, a hash of its key and the keys of all nodes that it depends on.

        The nodes in `without` are ignored.
        """
        down = [0] * len(keys)
        for i, key in enumerate(keys):
            ends = [
                (down[source], output_nr, input_nr)
                for source, _, output_nr, input_nr in self.inputs[i]
                if source not in without
            ]
            down[i] = hash((key, *ends))
        return down

    def hash_users(self, keys: Sequence[Hashable], without: Container[int] = ()) -> list[int]:
        """Return, for each node, a hash of its key and the keys of all nodes that depend on it."""
        up = [0] * len(keys)
        for i in reversed(range(len(keys))):
            ends = [
                (up[target], output_nr, input_nr)
                for _, target, output_nr, input_nr in self.users[i]
                if target not in without
            ]
            if len(ends) > 1:
                ends.sort()
            up[i] = hash((keys[i], *ends))
        return up

    def components(self, without: Container[int]) -> list[list[int]]:
        """Return the connected components of the graph without the nodes in `without`."""
        found: list[list[int]] = []
        reached: set[int] = set()
        for first in range(len(self.nodes)):
            if first in without or first in reached:
                continue
            part = [first]
            reached.add(first)
            for node in part:  # the loop appends the neighbors
                near = {*self.neighbors(node)} - reached
                near = {other for other in near if other not in without}
                reached |= near
                part += sorted(near)
            found.append(part)
        return found

    def neighbors(self, node: int) -> Iterator[int]:
        """Yield the nodes that have an edge to or from `node`."""
        yield from (e.source for e in self.inputs[node])
        yield from (e.target for e in self.users[node])


_Neighbors = Callable[[_GraphIndex, int], dict[Hashable, int]]


@with_gc_disabled
def match(a: Graph, b: Graph) -> dict[int, int]:
    """Return id of a node in `a` -> id of its match in `b`.

    No two nodes have the same match. Nodes without a match are not in the result.
    """
    return _Matching(_GraphIndex(a), _GraphIndex(b)).run()


class _Matching:
    def __init__(self, a: _GraphIndex, b: _GraphIndex) -> None:
        self.a, self.b = a, b
        self.to_b: dict[int, int] = {}
        self.to_a: dict[int, int] = {}
        self._most = min(len(a.nodes), len(b.nodes))

    def run(self) -> dict[int, int]:
        for level in LEVELS:
            self._by_hashes(level)
            # Nodes that use weights of the same name are matched first, because these matches are
            # more certain than those by hashes.
            if not level:
                self._grow([(i, j) for i, j in self.to_b.items() if self.a.nodes[i].leaf])
        self._grow(list(self.to_b.items()))
        self._fill_gaps()
        self._find_moved()
        return self.to_b

    @property
    def _complete(self) -> bool:
        """True if all nodes of one graph have a match."""
        return len(self.to_b) == self._most

    def _by_hashes(self, level: int) -> None:
        if self._complete:
            return
        a, b = self.a, self.b
        keys_a, keys_b = a.keys(level), b.keys(level)
        down_a, down_b = a.hash_inputs(keys_a), b.hash_inputs(keys_b)
        self._match_equal_counts(a.hash_users(down_a), b.hash_users(down_b))
        if self._complete:
            return
        # If two nodes have equal `down` hashes, their inputs have equal `down` hashes, too, so the
        # inputs match as well. The same is true for `up` hashes and users.
        self._grow(self._unique(down_a, down_b), (_sources,))
        self._grow(self._unique(a.hash_users(keys_a), b.hash_users(keys_b)), (_targets,))

    def _pair(self, i: int, j: int) -> bool:
        """Match two nodes, unless one is a weight and one a bias. Return True if they match."""
        role, other = self.a.roles[i], self.b.roles[j]
        if role != other and role and other:
            return False
        self.to_b[i], self.to_a[j] = j, i
        return True

    def _unmatched_by_key(
        self, left: Sequence[Hashable], right: Sequence[Hashable]
    ) -> tuple[dict[Hashable, list[int]], dict[Hashable, list[int]]]:
        """Return key -> unmatched nodes with this key, for each of the two graphs."""
        found: tuple[dict[Hashable, list[int]], dict[Hashable, list[int]]] = ({}, {})
        for groups, keys, matched in zip(found, (left, right), (self.to_b, self.to_a), strict=True):
            for node, key in enumerate(keys):
                if node not in matched:
                    groups.setdefault(key, []).append(node)
        return found

    def _unique(self, left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
        """Match nodes whose key occurs once in each graph, and return the new pairs."""
        lefts, rights = self._unmatched_by_key(left, right)
        return [
            (nodes[0], others[0])
            for key, nodes in lefts.items()
            if len(nodes) == len(others := rights.get(key, [])) == 1
            and self._pair(nodes[0], others[0])
        ]

    def _match_equal_counts(self, left: Sequence[Hashable], right: Sequence[Hashable]) -> None:
        """Match nodes whose key occurs equally often in both graphs.

        Among nodes with the same key, nodes whose inputs match are matched first, so that the nodes
        of two equal branches are not confused.
        """
        lefts, rights = self._unmatched_by_key(left, right)
        waiting: dict[Hashable, deque[int]] = {}
        by_inputs: dict[Hashable, deque[int]] = {}
        for key, others in rights.items():
            if len(lefts.get(key, [])) == len(others):
                waiting[key] = deque(others)
                for j in others:
                    sources = tuple(e.source for e in self.b.inputs[j])
                    by_inputs.setdefault((key, sources), deque()).append(j)
        for i, key in enumerate(left):
            if i in self.to_b or key not in waiting:
                continue
            mapped = tuple(self.to_b.get(e.source) for e in self.a.inputs[i])
            for candidates in (by_inputs.get((key, mapped), deque()), waiting[key]):
                while candidates and i not in self.to_b:
                    if (j := candidates.popleft()) not in self.to_a:
                        self._pair(i, j)

    def _grow(self, seeds: list[tuple[int, int]], directions: tuple[_Neighbors, ...] = ()) -> None:
        """Match the neighbors of matched nodes.

        Two neighbors match if they have the same name, and if the edges to them have the same
        `output_nr` and `input_nr`.

        Args:
            seeds: the matched nodes to start from.
            directions: functions that return neighbors of a node, namely its sources or its users;
                () for both.
        """
        queue = deque(seeds)
        while queue and not self._complete:
            i, j = queue.popleft()
            for neighbors in directions or (_sources, _targets):
                left = neighbors(self.a, i)
                if all(map(self.to_b.__contains__, left.values())):
                    continue
                right = neighbors(self.b, j)
                for key, x in left.items():
                    y = right.get(key)
                    if y is None or x in self.to_b or y in self.to_a:
                        continue
                    if self._pair(x, y):
                        queue.append((x, y))

    def _fill_gaps(self) -> None:
        """Align the unmatched nodes between two consecutive matches in order, and match them.

        Only matches that are in the same order in both graphs are considered.
        """
        if self._complete:
            return
        start = begin = 0
        ends = (len(self.a.nodes), len(self.b.nodes))
        for end, stop in [*_increasing(sorted(self.to_b.items())), ends]:
            # Nodes are aligned by name and role (weight or bias) first, then by name alone.
            for by_role in (True, False):
                left = [i for i in range(start, end) if i not in self.to_b]
                right = [j for j in range(begin, stop) if j not in self.to_a]
                keys = (
                    [(side.nodes[n].name, side.roles[n] if by_role else "") for n in ids]
                    for side, ids in ((self.a, left), (self.b, right))
                )
                for p, q in align(*keys):
                    self._pair(left[p], right[q])
            start, begin = end + 1, stop + 1

    def _find_moved(self) -> None:
        """Match identical connected components that are adjacent to the same matched node."""
        if self._complete:
            return
        found: tuple[dict[Hashable, list[list[int]]], ...] = ({}, {})
        for groups, side, matched in zip(
            found, (self.a, self.b), (self.to_b, self.to_a), strict=True
        ):
            keys = side.hash_users(side.hash_inputs(side.keys(LEVELS[1]), matched), matched)
            for part in side.components(matched):
                part.sort(key=lambda node: (keys[node], node))
                groups.setdefault(tuple(keys[node] for node in part), []).append(part)
        for key, parts in found[0].items():
            others = found[1].get(key, [])
            if len(parts) == len(others) == 1:
                near = {
                    self.to_b.get(other) for node in parts[0] for other in self.a.neighbors(node)
                }
                if any(other in near for node in others[0] for other in self.b.neighbors(node)):
                    for i, j in zip(parts[0], others[0], strict=True):
                        self._pair(i, j)


def _role(leaf: Node) -> str:
    """Return the role of a leaf, which its label shows: "weight", "bias" or ""."""
    name = leaf.label.rpartition(".")[2]
    return next((part for part in ("weight", "bias") if name.startswith(part)), "")


def _sources(side: _GraphIndex, node: int) -> dict[Hashable, int]:
    return {(side.nodes[e.source].name, e.input_nr): e.source for e in side.inputs[node]}


def _targets(side: _GraphIndex, node: int) -> dict[Hashable, int]:
    return {
        (side.nodes[e.target].name, e.output_nr, e.input_nr): e.target for e in side.users[node]
    }


def _increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of the sorted `pairs` in which both numbers increase."""
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
    """Return the positions of a longest common subsequence of `a` and `b` (Myers 1986).

    If the sequences differ by more than `_MAX_EDITS` insertions and deletions, a greedy
    approximation is returned.

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
    """Match the n-th occurrence of a key in `a` with its n-th occurrence in `b`."""
    places = {(key, n): j for j, (key, n) in enumerate(_number_occurrences(b))}
    return [(i, places[each]) for i, each in enumerate(_number_occurrences(a)) if each in places]


def _number_occurrences(keys: Sequence[Hashable]) -> list[tuple[Hashable, int]]:
    seen: Counter[Hashable] = Counter()
    found = []
    for key in keys:
        found.append((key, seen[key]))
        seen[key] += 1
    return found


Path = tuple[str, ...]


def renamed_modules(modules: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the sorted (path before, path after) of modules whose own name changed.

    A changed number is not a rename, because a module that is inserted into an `nn.Sequential`
    changes the numbers of all later modules. A module whose nodes are in several modules afterwards
    is not renamed either.

    Args:
        modules: (module in the first graph, module in the second graph) of each matched node.

    >>> renamed_modules([("enc.fc", "encoder.fc"), ("enc.norm", "encoder.norm"), ("0", "1")])
    (('enc', 'encoder'),)
    >>> renamed_modules([("fc", "module.fc")])
    (('', 'module'),)
    """
    to: dict[Path, dict[Path, None]] = {}
    for before, after in modules:
        for old, new in _levels(tuple(before.split(".")), tuple(after.split("."))):
            to.setdefault(old, {})[new] = None
    return tuple(
        (".".join(old), ".".join(new))
        for old, (new, *others) in sorted(to.items())
        if not others and _is_renamed(old, new)
    )


def _levels(before: Path, after: Path) -> Iterator[tuple[Path, Path]]:
    """Yield (path before, path after) of the modules that contain a matched node."""
    if len(before) == len(after):
        yield from ((before[:end], after[:end]) for end in range(1, len(before) + 1))
        return
    same = 0  # number of equal names at the end of both paths
    while same < min(len(before), len(after)) and before[-1 - same] == after[-1 - same]:
        same += 1
    yield before[: len(before) - same], after[: len(after) - same]


def _is_renamed(old: Path, new: Path) -> bool:
    if not old or not new:
        return True
    numbers = old[-1].isdigit() and new[-1].isdigit()
    return old[-1] != new[-1] and not numbers and "" not in (old[-1], new[-1])
