"""Groups: the tree that every collapsed drawing of a graph uses.

The graphs that a graph was joined from are the outermost groups. Modules make the tree where they
were recorded, one group for each call; a list of modules is none, and begins the names of those in
it. In them are groups of the nodes that one call of the program made. Where a level holds more than
a reader can take in, it is cut along the topological order: first into the repeats of a body (the
steps of a loop, blocks without names) and chains of one operation, then into runs of equal size.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ...graph import Edge, Graph, Node
from ...graph.gc import with_gc_disabled
from .call_groups import gather_calls
from .chains import gather, gather_gradients
from .cutting import Cutter
from .likeness import Structure
from .order import by_target, left_and_entered, order_of, places_of
from .part_tree import Item, Kind, Name, Part, flatten, split


class Group(NamedTuple):
    """Nodes that are drawn as one while it is closed."""

    id: int
    name: str  # one segment: "layers", "attn#2", "repeat 3", "operations 101-200"
    path: str  # unique, without "/": a module's scope; a run's name behind what is around it
    parent: int | None
    kind: Kind
    children: tuple[int, ...]  # groups directly inside, in topological order
    nodes: tuple[int, ...]  # nodes directly inside, in id order
    size: int  # number of all nodes inside
    span: tuple[int, int]  # where its operations stand in Groups.operations: from, and up to
    like: int  # id of the first group of the same structure; its own where it is the first
    # Where it was recorded: "Linear(4, 16)"; of a run the classes of the modules in it.
    module_class: str = ""


@dataclass(frozen=True, slots=True)
class Groups:
    """A tree of groups over the nodes of one graph; parents come before their children."""

    groups: tuple[Group, ...]
    of: tuple[int | None, ...]  # innermost group of each node; None: directly at the top
    roots: tuple[int, ...]  # groups at the top, in topological order
    nodes: tuple[int, ...]  # nodes directly at the top, in id order
    places: tuple[int, ...]  # of each node in the topological order that the tree follows
    operations: tuple[int, ...]  # all nodes but the leaves, in that order

    def below(self, number: int) -> list[int]:
        """A group and all groups in it, outer ones first."""
        found = [number]
        for inner in found:
            found += self.groups[inner].children
        return found

    def around(self, number: int | None) -> list[int]:
        """A group and all groups around it, inner ones first."""
        found: list[int] = []
        while number is not None:
            found.append(number)
            number = self.groups[number].parent
        return found


@with_gc_disabled
def group(
    graph: Graph, *, limit: int = 100, rows: int | None = None, loops: bool = False
) -> Groups:
    """The groups of a graph; no level has more than `limit` groups and nodes directly inside.

    A leaf belongs to the group of its first user. Two groups are alike when the operations inside,
    their attributes and outputs, the leaves that feed them, the edges between them and the classes
    of modules agree. Names may differ, and attributes that tell a place in a sequence.

    Args:
        rows: where a row of modules is longer than this, cut it into so many runs of a few modules,
            which a picture can show side by side. None: one that is longer than `limit` is cut into
            few runs of many modules, to be opened one by one.
        loops: put the repeats of a body in groups where they would fit the limit, too, and what
            only reshapes in chains.

    Raises:
        ValueError: if `limit` is less than 4.
    """
    return ModuleTree(graph, loops=loops).cut(limit, rows)


class ModuleTree:
    """The modules of a graph in each other; `cut` puts what a level holds too much of in groups.

    A drawing that tries several levels cuts the same modules in several ways.
    """

    def __init__(self, graph: Graph, *, loops: bool) -> None:
        self._graph, self._loops = graph, loops
        edges = by_target(graph)
        made, order = order_of(graph, edges)
        top, parts = _modules(graph, edges, order, made)
        if made:
            parts += gather_gradients(graph, [top, *[part.items for part in parts]])
        parts += gather_calls(graph, [top, *[part.items for part in parts]])
        if loops:
            parts += gather(graph, edges, [top, *[part.items for part in parts]])
        self._top, self._parts = top, [(part, part.items) for part in parts]
        self._order = flatten(top)
        self._structure = Structure(graph, edges, self._order)

    def cut(self, limit: int, rows: int | None) -> Groups:
        """As `group`, which says what the arguments are.

        Raises:
            ValueError: if `limit` is less than 4.
        """
        if limit < 4:
            raise ValueError(f"limit={limit} leaves no room for groups: give at least 4.")
        cutter = Cutter(self._structure, limit, rows, self._loops)
        for part, items in reversed(self._parts):
            part.items = cutter.cut(items)
            self._structure.close(part)
        operations = tuple(self._structure.operations)
        return _number(self._graph, cutter.cut(self._top), self._order, operations)


def _modules(
    graph: Graph, edges: Sequence[Edge], order: list[int], made: bool
) -> tuple[list[Item], list[Part]]:
    """The top level and all modules, outer ones first; a leaf stands just before its first user.

    Where the order is that in which the program made the operations, a list of modules between
    which it computes is not a group: as a box it would feed what it reads.
    """
    nodes = graph.nodes
    places = places_of(order)
    never = len(order)
    first = [never] * never  # of each leaf that is read: where its first user stands in the order
    for edge in edges:
        leaf, place = edge.source, places[edge.target]
        # A graph made by hand may have a leaf that a leaf reads: it stands where its scope says.
        if place < first[leaf] and nodes[leaf].leaf and not nodes[edge.target].leaf:
            first[leaf] = place
    leaves: dict[int, list[int]] = {}  # by node: those right before it
    for leaf, place in enumerate(first):
        if place < never:
            leaves.setdefault(order[place], []).append(leaf)
    scoped = [i for i in order if first[i] == never]
    scopes = _scopes(nodes)
    starts = [start for start, _ in graph.segments]
    rows: list[list[int]] = [[] for _ in range(len(starts) + 1)] if starts else [scoped]
    for i in scoped if starts else ():
        rows[bisect_right(starts, i)].append(i)
    apart = _lists(nodes)
    for row in rows if made else ():
        apart |= left_and_entered([scopes[i] for i in row])
    parts = [Part("graph", Name(title, f"{title}#", 1, 1), []) for _, title in graph.segments]
    top: list[Item] = [*parts]
    # The nodes before the first part are at the top.
    for items, row in zip([top, *[part.items for part in parts]], rows, strict=True):
        levels = {"": items}
        for i in row:
            scope = scopes[i]
            if scope not in levels:
                parts += _enter(levels, scope, nodes[i], apart)
            level = levels[scope]
            if i in leaves:
                level += leaves[i]
            level.append(i)
    return top, parts


_LISTS = ("ModuleList", "ModuleDict")  # modules that are never called


def _lists(nodes: Sequence[Node]) -> set[str]:
    """The scopes of the lists of modules, which compute nothing themselves."""
    found: set[str] = set()
    for scope, classes in {(node.scope, node.module_class) for node in nodes}:
        kinds = classes.split("/")
        names = scope.split(".")
        if len(kinds) == len(names):
            for depth, kind in enumerate(kinds):
                if kind.partition("(")[0] in _LISTS:
                    found.add(".".join(names[: depth + 1]))
    return found


def _enter(levels: dict[str, list[Item]], scope: str, node: Node, apart: set[str]) -> list[Part]:
    """Add the levels of a scope, as far as there are none; gives the new modules, outer first.

    A module that is `apart` has no level of its own: it begins the names of those inside.
    """
    missing = []
    path = scope
    while path not in levels:
        outer, _, segment = path.rpartition(".")
        missing.append((path, outer, segment))
        path = outer
    classes = node.module_class.split("/")
    known = len(classes) if scope.count(".") == node.module.count(".") else 0
    found: list[Part] = []
    for path, outer, segment in reversed(missing):
        if path in apart:
            levels[path] = levels[outer]
            continue
        name = segment
        while outer in apart:
            outer, _, before = outer.rpartition(".")
            name = f"{before}.{name}"
        depth = path.count(".")
        part = Part("module", _named(name), [], classes[depth] if depth < known else "")
        levels[outer].append(part)
        levels[path] = part.items
        found.append(part)
    return found


def _scopes(nodes: Sequence[Node]) -> list[str]:
    """The scope of each node.

    Of a model that has no modules inside, or is called several times, the model itself is one: its
    calls are "Policy", "Policy#2"; "model", "model#2" where it computes nothing itself.
    """
    scopes = [node.scope for node in nodes]
    distinct = set(scopes)
    calls = [scope for scope in distinct if scope.startswith("#")]
    if not calls and any(distinct):
        return scopes
    classes = (node.module_class for node in nodes if not (node.module or node.leaf))
    model = next(filter(None, classes), "").partition("(")[0].replace(".", "_")
    if not calls:
        return [model if node.module_class else "" for node in nodes]
    model = model or "model"
    inside = {scope.split(".")[1].partition("#")[0] for scope in calls if "." in scope}
    found = []
    for node in nodes:
        scope, first = node.scope, node.scope.partition(".")[0].partition("#")[0]
        if scope.startswith("#"):
            found.append(model + scope)
        elif first in inside or (not scope and node.module_class):
            found.append(f"{model}.{scope}" if scope else model)
        else:
            found.append(scope)
    return found


_DIGITS = re.compile(r"\d+\Z")


@lru_cache(maxsize=4096)  # a model has many alike
def _named(text: str) -> Name:
    found = _DIGITS.search(text) if text[-1:].isdecimal() else None
    if found is None:
        return Name(text, f"{text}#", 1, 1)
    number = int(found[0])
    return Name(text, text[: found.start()], number, number)


def _number(graph: Graph, top: list[Item], order: list[int], operations: tuple[int, ...]) -> Groups:
    """The finished values: parents before children, in topological order."""
    parts: list[Part] = []
    parents: list[int | None] = []
    paths: list[str] = []
    taken: set[str] = set()
    numbers: dict[Part, int] = {}
    of: list[int | None] = [None] * len(graph.nodes)
    outer_parts, outer_nodes = split(top)
    stack: list[tuple[Part, int | None]] = [(part, None) for part in reversed(outer_parts)]
    while stack:
        part, parent = stack.pop()
        numbers[part] = number = len(parts)
        # "/" separates the segments of names in TensorBoard.
        path = part.name.text.replace("/", "|")
        outer = parent
        while part.kind == "module" and outer is not None and parts[outer].kind != "module":
            outer = parents[outer]
        if outer is not None:
            path = f"{paths[outer]}.{path}"
        while path in taken:
            path += "'"
        taken.add(path)
        parts.append(part)
        parents.append(parent)
        paths.append(path)
        for i in part.nodes:
            of[i] = number
        stack += [(inner, number) for inner in reversed(part.parts)]
    sizes = [len(part.nodes) for part in parts]
    for number in reversed(range(len(parts))):
        outer = parents[number]
        if outer is not None:
            sizes[outer] += sizes[number]
    like: dict[int, int] = {}
    groups = tuple(
        [
            Group(
                number,
                part.name.text,
                paths[number],
                parents[number],
                part.kind,
                tuple([numbers[inner] for inner in part.parts]),
                tuple(part.nodes),
                sizes[number],
                part.span,
                like.setdefault(part.structure, number),
                part.module_class,
            )
            for number, part in enumerate(parts)
        ]
    )
    roots = tuple(numbers[part] for part in outer_parts)
    places = tuple(places_of(order))
    return Groups(groups, tuple(of), roots, tuple(outer_nodes), places, operations)
