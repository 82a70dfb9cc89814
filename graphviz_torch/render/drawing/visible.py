"""What of a graph a drawing shows: which nodes, which closed groups, and the edges between them.

A visible thing has a key: the id of a node, or `~id` of a closed group.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from ...graph import Edge, Graph
from ..groups.groups import Groups
from .inline import Inner
from .opening import Opener


class Line(NamedTuple):
    """What is drawn for edges that end at a closed group, or that are several."""

    source: int  # key
    target: int  # key
    edge: Edge  # the first of the edges it stands for
    times: int = 1  # how many tensors pass
    alike: bool = True  # have they one shape and dtype


@dataclass(slots=True)
class Visible:
    """What is drawn, in topological order."""

    nodes: list[int]
    edges: list[Edge]  # between nodes that are drawn as themselves
    inner: Inner  # what is written inside nodes
    lines: list[Line] = field(default_factory=list)
    boxes: list[int] = field(default_factory=list)  # closed groups
    groups: Groups | None = None
    opened: set[int] = field(default_factory=set)
    home: dict[int, int | None] = field(default_factory=dict)  # key -> innermost open group
    times: dict[int, int] = field(default_factory=dict)  # group -> how many alike it stands for
    last: dict[int, int] = field(default_factory=dict)  # group -> the last of those
    linked: dict[int, str] = field(default_factory=dict)  # group of `times` -> how these are linked
    keys: Keys | None = None  # None: every node is drawn, or written inside one that is
    before: dict[int, list[int]] = field(default_factory=dict)  # key -> keys or ids named above it
    behind: dict[int, list[int]] = field(default_factory=dict)  # key -> keys or ids named below it
    alone: dict[int, str] = field(default_factory=dict)  # node -> the module that it is all of

    def ends(self) -> list[tuple[int, int]]:
        """Source and target of each drawn edge, as keys: `edges`, then `lines`."""
        return [edge[:2] for edge in self.edges] + [line[:2] for line in self.lines]

    def key(self, node: int) -> int:
        """The key under which a node is drawn: its own, or that of what stands for it.

        That is the operation in which it is written, the closed group around it, or its like in a
        block that is drawn for several.
        """
        host = self.inner.host(node)
        if self.keys is None:
            return host
        key = self.keys.of(host)
        return self.keys.users.get(host, host) if key is None else key

    def itself(self, node: int) -> int | None:
        """The key of a node that is drawn, or the closed group around it.

        None for a node that is written inside another, drawn as its like, or not at all.
        """
        if node in self.inner.folded:
            return None
        key: int | None = node
        if self.keys is not None:
            key = self.keys.of(node)
        return key if key is None or key == node or key < 0 else None

    def path(self, key: int) -> list[int]:
        """The open groups around a key, outermost first."""
        if self.groups is None:
            return []
        around = self.groups.around(self.home.get(key))
        return [number for number in reversed(around) if number in self.opened]

    def described(self, number: int, graph: Graph) -> str:
        """The title of a group with the class of its module, where that was recorded."""
        kind = self._class(number, graph)
        return f"{self.title(number)} · {kind}" if kind else self.title(number)

    def _class(self, number: int, graph: Graph) -> str:
        assert self.groups is not None
        part = self.groups.groups[number]
        if part.kind != "module":
            return ""
        for inner in self.groups.below(number):
            for i in self.groups.groups[inner].nodes:
                node = graph.nodes[i]
                if node.module_class and not node.leaf:
                    depth = part.path.count(".")
                    classes = node.module_class.split("/")
                    same = node.scope.count(".") == node.module.count(".")
                    return classes[depth] if same and depth < len(classes) else ""
        return ""

    def title(self, number: int) -> str:
        """What to call a group: with the one around it where its own name is only a number."""
        assert self.groups is not None
        groups = self.groups.groups
        part = groups[number]
        name = part.name
        outer = part.parent
        while outer is not None and groups[outer].kind == "run":
            outer = groups[outer].parent
        if outer is not None and (name[:1].isdigit() or outer not in self.opened):
            name = f"{groups[outer].name}.{name}"
        times = self.times.get(number, 1)
        if times > 1:
            last = groups[self.last[number]].name
            stem = re.sub(r"[\d#-]*$", "", part.name)
            last = last[len(stem) :] if last.startswith(stem) and last != stem else last
            name += f" … {last}  \N{MULTIPLICATION SIGN}{times}"
            name += self.linked.get(number, "")
        return name


def dot_id(key: int) -> str:
    """The name of a key in a DOT text."""
    return str(key) if key >= 0 else f"g{~key}"


def place(drawn: Visible, key: int) -> int:
    """Where a key stands in the topological order."""
    tree = drawn.groups
    if tree is None:
        return key
    if key >= 0:
        return tree.places[key]
    part = tree.groups[~key]
    while not part.nodes:
        part = tree.groups[part.children[0]]
    return tree.places[part.nodes[-1]]


class Keys:
    """Under which key the nodes of a collapsed drawing are drawn."""

    def __init__(self, opener: Opener) -> None:
        self.tree = tree = opener.tree
        self.family = opener.family
        self.shown = set(opener.nodes)
        self.box = {inner: number for number in opener.closed for inner in tree.below(number)}
        # Groups in a hidden one -> that one: the first of its family is drawn for it.
        self.hidden = {inner: number for number in opener.hidden for inner in tree.below(number)}
        operations = tree.operations if opener.hidden else ()
        self.position = dict(zip(operations, range(len(operations)), strict=True))
        self.known: dict[int, int | None] = {}
        self.users: dict[int, int] = {}  # leaf of a hidden group -> the key of its first user

    def of(self, node: int) -> int | None:
        """The key of a node; None for one that is neither drawn nor in a closed group."""
        if node not in self.known:
            self.known[node] = self._find(node)
        return self.known[node]

    def _find(self, node: int) -> int | None:
        groups = self.tree.groups
        number = self.tree.of[node]
        while number in self.hidden and node in self.position:
            there = self.hidden[number]
            start = groups[self.family[there]].span[0]
            place = start + self.position[node] - groups[there].span[0]
            node = self.tree.operations[place]
            number = self.tree.of[node]
        if node in self.shown:
            return node
        return ~self.box[number] if number in self.box else None

    def between(self, source: int, target: int) -> dict[int, tuple[int, int]]:
        """Families of groups drawn as one of which an edge goes from one to another: from, to."""
        ends = [{self.family[n]: n for n in self._folded(node)} for node in (source, target)]
        pairs = {family: (n, ends[1][family]) for family, n in ends[0].items() if family in ends[1]}
        return {family: pair for family, pair in pairs.items() if pair[0] != pair[1]}

    def _folded(self, node: int) -> set[int]:
        """The groups around a node that are drawn as one with others."""
        return {number for number in self.tree.around(self.tree.of[node]) if number in self.family}


def collapsed(graph: Graph, opener: Opener, inner: Inner) -> Visible:
    """What is drawn where some groups are open and others closed or drawn as their like."""
    tree = opener.tree
    keys = Keys(opener)
    shown, hidden, of = keys.shown, keys.hidden, tree.of
    last = {first: number for number, first in opener.family.items()}
    home: dict[int, int | None] = {i: of[i] for i in opener.nodes}
    home.update({~number: tree.groups[number].parent for number in opener.closed})
    drawn = Visible(
        sorted(shown),
        [],
        replace(inner, inside={i: e for i, e in inner.inside.items() if i in shown}),
        boxes=opener.closed,
        groups=tree,
        opened=opener.opened,
        home=home,
        times=Counter(opener.family.values()),
        last=last,
        keys=keys,
    )
    # By both ends: an edge for each tensor that passes, by its node and output.
    lines: dict[tuple[int, int], dict[tuple[int, int], Edge]] = defaultdict(dict)
    before: dict[int, dict[int, None]] = defaultdict(dict)
    behind: dict[int, dict[int, None]] = defaultdict(dict)
    links: dict[int, set[tuple[int, int]]] = defaultdict(set)  # by family
    for edge in inner.edges:
        if edge.source in shown and edge.target in shown:
            drawn.edges.append(edge)
            continue
        start, end = of[edge.source], of[edge.target]
        if start in hidden and graph.nodes[edge.source].leaf:
            user = keys.of(edge.target)
            if user is not None:
                keys.users.setdefault(edge.source, user)
        if start == end and (start in hidden or start in keys.box):
            continue
        if start in hidden or end in hidden:
            families = keys.between(edge.source, edge.target)
            for family, pair in families.items():
                links[family].add(pair)
            if families or (start in hidden and end in hidden):
                continue  # the group that is drawn has an edge of its own for it
        source, target = keys.of(edge.source), keys.of(edge.target)
        if source is None or target is None:
            if target is not None:
                before[target][edge.source] = None
            if source is not None and end not in hidden:
                behind[source][edge.target] = None
        elif source != target:
            lines[source, target].setdefault((edge.source, edge.output_nr), edge)
    if lines:
        for edge in drawn.edges:
            if edge[:2] in lines:
                lines[edge[:2]].setdefault((edge.source, edge.output_nr), edge)
        drawn.edges = [edge for edge in drawn.edges if edge[:2] not in lines]
    for (source, target), passing in lines.items():
        edge = next(iter(passing.values()))
        if source >= 0 and target >= 0 and len(passing) == 1:
            drawn.edges.append(Edge(source, target, edge.output_nr, edge.input_nr))
        else:
            shapes = {graph.nodes[node].outputs[nr : nr + 1] for node, nr in passing}
            drawn.lines.append(Line(source, target, edge, len(passing), len(shapes) == 1))
    drawn.linked = {family: _linked(family, pairs, keys) for family, pairs in links.items()}
    _place_leaves(graph, drawn)
    # A run that is drawn for itself only means nothing to a reader.
    drawn.opened -= {n for n in opener.opened if tree.groups[n].kind == "run" and n not in last}
    drawn.opened -= _scattered(drawn)
    _unframe(drawn)
    drawn.before = {end: list(names) for end, names in before.items()}
    drawn.behind = {end: list(names) for end, names in behind.items()}
    return drawn


def _linked(family: int, pairs: set[tuple[int, int]], keys: Keys) -> str:
    """How the groups of a family are linked among themselves, in words."""
    groups = keys.tree.groups
    members = [number for number, first in keys.family.items() if first == family]
    members.sort(key=lambda number: groups[number].span)
    row = set(pairwise(members))
    return ", each feeds the next" if pairs == row else ", with edges between them"


def _scattered(drawn: Visible) -> set[int]:
    """Open containers, such as an nn.ModuleList, that the flow of data leaves and enters again.

    Drawn as a cluster, each would be a tall and empty column beside what lies between its parts.
    """
    assert drawn.groups is not None
    groups = drawn.groups.groups
    containers = [n for n in drawn.opened if groups[n].kind == "module" and not groups[n].nodes]
    if not containers:
        return set()
    users: dict[int, list[int]] = defaultdict(list)
    for source, target in drawn.ends():
        users[source].append(target)
    around = {key: set(drawn.path(key)) for key in drawn.home}
    found: set[int] = set()
    for number in containers:
        members = [key for key, path in around.items() if number in path]
        behind = [user for key in members for user in users[key] if number not in around[user]]
        seen = set(behind)
        for key in behind:
            fresh = [user for user in users[key] if user not in seen]
            if any(number in around[user] for user in fresh):
                found.add(number)
                break
            seen.update(fresh)
            behind += fresh
    return found


def _unframe(drawn: Visible) -> None:
    """Open groups that hold one thing get no frame: an operation takes the name of its module."""
    assert drawn.groups is not None
    groups = drawn.groups.groups
    inside: dict[int | None, list[int]] = defaultdict(list)  # of each open group, keys and ~groups
    around = {key: drawn.path(key) for key in (*drawn.nodes, *(~box for box in drawn.boxes))}
    for key, path in around.items():
        for number in path:
            inside[number].append(key)
    for number in sorted(drawn.opened, reverse=True):  # inner ones first
        members = inside.get(number, [])
        frames = {
            path[path.index(number) + 1 :][:1] for path in map(tuple, map(drawn.path, members))
        }
        single = len(members) == 1 or (len(frames) == 1 and () not in frames)
        if not single or groups[number].kind != "module":
            continue
        if len(members) > 1 and drawn.times.get(number, 1) > 1:
            continue
        if len(members) == 1 and members[0] >= 0 and members[0] not in drawn.alone:
            drawn.alone[members[0]] = drawn.title(number)
        elif drawn.times.get(number, 1) > 1:
            continue  # its frame alone says how many it stands for
        drawn.opened.discard(number)


def _place_leaves(graph: Graph, drawn: Visible) -> None:
    """A leaf that is drawn stands outside the modules that share it."""
    around: dict[int, list[list[int]]] = defaultdict(list)
    for source, target in drawn.ends():
        if source >= 0 and graph.nodes[source].leaf:
            around[source].append(drawn.path(target))
    for leaf, paths in around.items():
        common = [numbers[0] for numbers in zip(*paths, strict=False) if len(set(numbers)) == 1]
        drawn.home[leaf] = common[-1] if common else None
