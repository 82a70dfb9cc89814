"""What of a graph a drawing shows: which nodes, which closed groups, and the edges between them.

A visible thing has a key: the id of a node, or `~id` of a closed group.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, NamedTuple

from ..graph import Edge, Graph
from .groups import Groups, group

Parameters = Literal["fold", "nodes"]

# More leaves than this are written inside the operation that uses them: as nodes of their own they
# would stand in a staircase of which nobody can read the steps.
_MOST_LEAVES = 20
# A leaf with more users than this is written inside each, and its own node stands alone: with all
# these edges it would pull the whole drawing out of shape.
_MOST_USERS = 8
# A collapsed drawing opens groups up to this many things: what fits a page.
_PAGE = 250
# A row of groups is short when folded if it has at most so many structures for each run of it.
_KINDS = 3


class Line(NamedTuple):
    """What is drawn for edges that end at a closed group, or that are several."""

    source: int  # key
    target: int  # key
    edge: Edge  # the first of the edges it stands for
    times: int = 1  # how many tensors pass


@dataclass(slots=True)
class Visible:
    """What is drawn, in topological order."""

    nodes: list[int]
    edges: list[Edge]  # between nodes that are drawn as themselves
    lines: list[Line] = field(default_factory=list)
    boxes: list[int] = field(default_factory=list)  # closed groups
    groups: Groups | None = None
    opened: set[int] = field(default_factory=set)
    home: dict[int, int | None] = field(default_factory=dict)  # key -> innermost open group
    times: dict[int, int] = field(default_factory=dict)  # group -> how many alike it stands for
    last: dict[int, int] = field(default_factory=dict)  # group -> the last of those
    folded: dict[int, list[Edge]] = field(default_factory=dict)  # user -> leaves written inside
    chained: set[int] = field(default_factory=set)  # groups of `times` of which each feeds the next
    users: dict[int, int] = field(default_factory=dict)  # leaf -> number of its users, where many
    before: dict[int, list[int]] = field(default_factory=dict)  # key -> keys or ids named above it
    behind: dict[int, list[int]] = field(default_factory=dict)  # key -> keys or ids named below it

    def ends(self) -> list[tuple[int, int]]:
        """Source and target of each drawn edge, as keys: `edges`, then `lines`."""
        return [(edge[0], edge[1]) for edge in (*self.edges, *self.lines)]

    def key(self, node: int) -> int:
        """The key under which a node is drawn: its own, or that of the closed group around it."""
        tree = self.groups
        number = tree.of[node] if tree is not None and 0 <= node < len(tree.of) else None
        while tree is not None and number is not None:
            if ~number in self.home:
                return ~number
            number = tree.groups[number].parent
        return node

    def path(self, key: int) -> list[int]:
        """The open groups around a key, outermost first."""
        if self.groups is None:
            return []
        return [n for n in _path(self.groups, self.home.get(key)) if n in self.opened]

    def title(self, number: int) -> str:
        """What to call a group: with the one around it where its own name is only a number."""
        assert self.groups is not None
        groups = self.groups.groups
        part = groups[number]
        name = part.name
        outer = part.parent
        while outer is not None and groups[outer].kind == "run":
            outer = groups[outer].parent
        if name[:1].isdigit() and outer is not None:
            name = f"{groups[outer].name}.{name}"
        times = self.times.get(number, 1)
        if times > 1:
            last = groups[self.last[number]].name
            stem = re.sub(r"[\d#-]*$", "", part.name)
            last = last[len(stem) :] if last.startswith(stem) and last != stem else last
            name += f" … {last}  \N{MULTIPLICATION SIGN}{times}"
            name += ", each feeds the next" if number in self.chained else ""
        return name


def dot_id(key: int) -> str:
    """The name of a key in a DOT text."""
    return str(key) if key >= 0 else f"g{~key}"


def visible(
    graph: Graph,
    *,
    parameters: Parameters | None = None,
    depth: int | None = None,
    module: str | None = None,
    fold: bool | None = None,
    limit: int = 1500,
) -> Visible:
    """What to draw of a graph.

    Args:
        parameters: "fold" writes parameters inside the operation that uses them, "nodes" gives each
            a node; None folds them where modules were recorded or there are many.
        depth: levels of groups to open; None opens what there is room for.
        module: draw the inside of this module only.
        fold: draw blocks of the same structure that follow each other as one; None does so where
            the drawing is collapsed.
        limit: with more nodes than this the drawing is collapsed.

    Raises:
        ValueError: for a module that the graph does not have.
    """
    scoped = any(node.scope for node in graph.nodes)
    leaves = [node.id for node in graph.nodes if node.leaf]
    are_leaves = set(leaves)
    users = Counter([edge[0] for edge in graph.edges if edge[0] in are_leaves])
    folded = _folded_leaves(graph, leaves, users, parameters, scoped)
    large = len(graph.nodes) - len(folded) > limit
    if not (scoped or large or fold or depth or module):
        return _all(graph, users, folded)
    collapsed = large or bool(fold) or depth is not None
    tree = group(graph, limit=100 if collapsed else max(4, len(graph.nodes)))
    opener = _Opener(graph, tree, folded, collapsed if fold is None else fold)
    start = None if module is None else _find(tree, graph, module)
    budget = min(limit, _PAGE) if depth is None and collapsed else None
    opener.open(start, depth, budget)
    return _collapsed(graph, opener, users, folded)


def _folded_leaves(
    graph: Graph,
    leaves: list[int],
    users: Counter[int],
    parameters: Parameters | None,
    scoped: bool,
) -> set[int]:
    if parameters == "nodes":
        return set()
    kinds = Counter([graph.nodes[i].leaf for i in leaves])
    fold_parameters = (
        parameters == "fold" or scoped or kinds["parameter"] + kinds["buffer"] > _MOST_LEAVES
    )
    fold_tensors = kinds["tensor"] > _MOST_LEAVES
    ends = {node for node, _ in graph.outputs}
    folded = set()
    for i, times in users.items():
        if i not in ends:
            if graph.nodes[i].leaf == "tensor":
                fold = fold_tensors
            else:
                fold = fold_parameters or times > _MOST_USERS
            folded.update([i] if fold else [])
    return folded


def _all(graph: Graph, users: Counter[int], folded: set[int]) -> Visible:
    many = {leaf: n for leaf, n in users.items() if n > _MOST_USERS}
    if not many and not folded:
        return Visible(list(range(len(graph.nodes))), list(graph.edges))
    drawn = Visible([i for i in range(len(graph.nodes)) if i not in folded], [], users=many)
    inside = drawn.folded
    for edge in graph.edges:
        source = edge[0]
        if source in folded or source in many:
            inside.setdefault(edge[1], []).append(edge)
        else:
            drawn.edges.append(edge)
    return drawn


def _find(tree: Groups, graph: Graph, module: str) -> int:
    paths = {part.path: part.id for part in reversed(tree.groups)}
    if module not in paths:
        near = get_close_matches(module, paths, 3) or list(paths)[:3]
        known = f"It has {', '.join(map(repr, near))}, …" if paths else "It has no modules."
        raise ValueError(f"module={module!r} is not in the graph. {known}")
    return paths[module]


class _Opener:
    """Decides which groups are open, which are closed, and which hide behind one that is alike."""

    def __init__(self, graph: Graph, tree: Groups, folded: set[int], fold: bool) -> None:
        self.graph = graph
        self.tree = tree
        self.folded = folded
        self.fold = fold
        self.opened: set[int] = set()
        self.closed: list[int] = []
        self.nodes: list[int] = []
        self.family: dict[int, int] = {}  # group -> the first of those it is drawn with
        self.hidden: list[int] = []
        self.span = self._spans() if fold else {}

    def open(self, start: int | None, depth: int | None, budget: int | None) -> None:
        """Open groups level by level from `start`, `depth` levels or up to `budget` things."""
        level = self._show(start)
        shown = len(level) + len(self.nodes)
        below = 0
        while level:
            following: list[int] = []
            for number in level:
                inside = self._count(number)
                if (depth is not None and below >= depth) or (
                    budget is not None and shown + inside - 1 > budget
                ):
                    self.closed.append(number)
                else:
                    shown += inside - 1
                    following += self._show(number)
            level = following
            below += 1

    def _count(self, number: int) -> int:
        part = self.tree.groups[number]
        nodes = sum(i not in self.folded for i in part.nodes)
        return nodes + len(self._families(self._unpacked(part.children), part.nodes))

    def _unpacked(self, children: tuple[int, ...]) -> tuple[int, ...]:
        """Groups without the runs that only hold a long row of them: folded, the row is short."""
        groups = self.tree.groups
        rows = [groups[n] for n in children if groups[n].kind == "run" and not groups[n].nodes]
        kinds = {groups[inner].like for row in rows for inner in row.children}
        if not self.fold or not rows or len(kinds) > _KINDS * len(rows):
            return children
        found: list[int] = []
        for number in children:
            part = groups[number]
            found += part.children if part in rows else [number]
        return self._unpacked(tuple(found))

    def _show(self, number: int | None) -> list[int]:
        if number is None:
            children, nodes = self.tree.roots, self.tree.nodes
        else:
            children, nodes = self.tree.groups[number].children, self.tree.groups[number].nodes
            self.opened.add(number)
        children = self._unpacked(children)
        self.nodes += [i for i in nodes if i not in self.folded]
        families = self._families(children, nodes)
        for members in families:
            if len(members) > 1:
                self.family.update(dict.fromkeys(members, members[0]))
                self.hidden += members[1:]
        return [members[0] for members in families]

    def _families(self, children: Iterable[int], nodes: Iterable[int]) -> list[list[int]]:
        """Groups that follow each other, are alike, and have no operation between them."""
        groups = self.tree.groups
        families: list[list[int]] = []
        between: list[int] = []
        if self.fold:
            places = self.tree.places
            between = sorted(places[i] for i in nodes if not self.graph.nodes[i].leaf)
        position = 0
        for child in children:
            previous = families[-1][-1] if families else None
            if self.fold and previous is not None and groups[previous].like == groups[child].like:
                end, start = self.span[previous][1], self.span[child][0]
                while position < len(between) and between[position] <= end:
                    position += 1
                apart = position < len(between) and between[position] < start
                if not apart and end < start:
                    families[-1].append(child)
                    continue
            families.append([child])
        return families

    def _spans(self) -> dict[int, tuple[int, int]]:
        """The places of the first and the last operation in each group."""
        spans: dict[int, tuple[int, int]] = {}
        places = self.tree.places
        for part in reversed(self.tree.groups):
            found = [places[i] for i in part.nodes if not self.graph.nodes[i].leaf]
            found += [place for child in part.children for place in spans[child]]
            found = found or [places[i] for i in part.nodes]
            spans[part.id] = (min(found), max(found))
        return spans

    def below(self, number: int) -> list[int]:
        """A group and all groups in it."""
        found = [number]
        for inner in found:
            found += self.tree.groups[inner].children
        return found

    def operations(self, number: int) -> list[int]:
        """The operations in a group, in their order."""
        return sorted(
            [
                i
                for inner in self.below(number)
                for i in self.tree.groups[inner].nodes
                if not self.graph.nodes[i].leaf
            ],
            key=self.tree.places.__getitem__,
        )


def _collapsed(graph: Graph, opener: _Opener, users: Counter[int], folded: set[int]) -> Visible:
    tree = opener.tree
    box = {inner: number for number in opener.closed for inner in opener.below(number)}
    shown = set(opener.nodes)
    alias: dict[int, int] = {}  # operation of a hidden group -> the one that is drawn for it
    for number in opener.hidden:
        first = opener.operations(opener.family[number])
        alias.update(zip(opener.operations(number), first, strict=True))

    def key(i: int) -> int | None:
        while i in alias:
            i = alias[i]
        if i in shown:
            return i
        number = tree.of[i]
        return ~box[number] if number is not None and number in box else None

    def ancestors(i: int) -> set[int]:
        found: set[int] = set()
        number = tree.of[i]
        while number is not None:
            if number in opener.family:
                found.add(number)
            number = tree.groups[number].parent
        return found

    def between(edge: Edge) -> set[int]:
        """Families of groups drawn as one of which an edge goes from one to another."""
        ends = [ancestors(edge.source), ancestors(edge.target)]
        families = [{opener.family[number] for number in end} for end in ends]
        shared = families[0] & families[1]
        return {opener.family[number] for number in ends[0] ^ ends[1]} & shared

    times = Counter(opener.family.values())
    last = {first: number for number, first in opener.family.items()}
    boxes = opener.closed
    home: dict[int, int | None] = {i: tree.of[i] for i in opener.nodes}
    home.update({~number: tree.groups[number].parent for number in boxes})
    drawn = Visible([], [], [], boxes, tree, opener.opened, home, dict(times), last)
    drawn.users = {leaf: n for leaf, n in users.items() if n > _MOST_USERS}
    lines: dict[tuple[int, ...], Line] = {}
    inside: dict[int, list[Edge]] = defaultdict(list)
    before: dict[int, dict[int, None]] = defaultdict(dict)
    behind: dict[int, dict[int, None]] = defaultdict(dict)
    for edge in graph.edges:
        if edge.source in folded:
            if edge.target in shown:
                inside[edge.target].append(edge)
            continue
        if edge.source in alias or edge.target in alias:
            families = between(edge)
            drawn.chained |= families
            if families or (edge.source in alias and edge.target in alias):
                continue  # the group that is drawn has an edge of its own for it
        source, target = key(edge.source), key(edge.target)
        if source is None or target is None:
            if target is not None and not graph.nodes[edge.source].leaf:
                before[target][edge.source] = None
            if source is not None and edge.target not in alias:
                behind[source][edge.target] = None
        elif source in drawn.users:
            if edge.target in shown:
                inside[edge.target].append(edge)
        elif source != target:
            ends = (source, target) if min(source, target) < 0 else (source, target, *edge[2:])
            line = lines.get(ends)
            if line is None:
                lines[ends] = Line(source, target, edge)
            elif (line.edge.source, line.edge.output_nr) != (edge.source, edge.output_nr):
                lines[ends] = line._replace(times=line.times + 1)
    # A leaf that is drawn stands outside the modules that share it.
    around: dict[int, list[list[int]]] = defaultdict(list)
    for line in lines.values():
        if line.source >= 0 and line.target >= 0 and line.times == 1:
            drawn.edges.append(Edge(line.source, line.target, *line.edge[2:]))
        else:
            drawn.lines.append(line)
        if line.source >= 0 and graph.nodes[line.source].leaf:
            around[line.source].append(_path(tree, home[line.target]))
    for leaf, paths in around.items():
        common = [numbers[0] for numbers in zip(*paths, strict=False) if len(set(numbers)) == 1]
        home[leaf] = common[-1] if common else None
    drawn.folded = inside
    drawn.nodes = sorted(shown)
    drawn.before = {end: list(names) for end, names in before.items()}
    drawn.behind = {end: list(names) for end, names in behind.items()}
    return drawn


def _path(tree: Groups, number: int | None) -> list[int]:
    """A group with all groups around it, outermost first."""
    path: list[int] = []
    while number is not None:
        path.append(number)
        number = tree.groups[number].parent
    return path[::-1]
