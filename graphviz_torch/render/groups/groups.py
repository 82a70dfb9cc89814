"""Build the tree of groups of nodes, which a drawing shows as open or closed boxes.

From the outermost to the innermost, the groups are:

- each backward pass, if several passes were joined into one graph;
- each recorded call of a module. A container such as `nn.ModuleList` is not a group: its name
  becomes a prefix of the names inside;
- the nodes that one function call created.

A group with too many children is split along the topological order: first into repetitions (steps
of a loop, unnamed blocks) and chains of one operation, then into runs, which are equally many
consecutive nodes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from ...graph import Edge, Graph, Node
from ...graph.gc import with_gc_disabled
from ...graph.immutable import NamedTuple, immutable
from .call_groups import (
    Item,
    Kind,
    Part,
    RangeName,
    flatten,
    gather_calls,
    gather_gradients,
    gather_views,
    split,
)
from .isomorphism import Structure
from .order import by_target, interrupted_containers, order_of, places_of
from .split_levels import LevelSplitter


class Group(NamedTuple):
    """A group of nodes, which is drawn as one box while the group is closed."""

    id: int
    name: str  # "layers", "attn#2" (second call), "repeat 3", "operations 101-200"
    path: str  # unique: the parent's path, ".", and the name, with "|" for any "/"
    parent: int | None
    kind: Kind
    children: tuple[int, ...]  # groups directly inside, in topological order
    nodes: tuple[int, ...]  # nodes directly inside, in id order
    size: int  # number of all nodes inside
    span: tuple[int, int]  # range (start, end) of the group's operations in Groups.operations
    like: int  # id of the first isomorphic group, which may be this one
    # Class of the module, such as "Linear(4, 16)", or classes of the modules in a run (consecutive
    # nodes and groups); "" if not recorded.
    module_class: str = ""

    @property
    def has_only_leaves(self) -> bool:
        """Return True if the group contains no operation, but for example parameters."""
        return self.span[0] == self.span[1]


@immutable
class Groups:
    """The tree of groups of one graph; parents come before their children in `groups`."""

    groups: tuple[Group, ...]
    of: tuple[int | None, ...]  # innermost group of each node; None at the top level
    roots: tuple[int, ...]  # groups at the top level, in topological order
    nodes: tuple[int, ...]  # nodes at the top level, in id order
    places: tuple[int, ...]  # position of each node in the topological order of the tree
    operations: tuple[int, ...]  # all nodes except leaves, in this topological order

    def with_descendants(self, number: int) -> list[int]:
        """Return a group and all groups inside, outer groups first."""
        found = [number]
        for inner in found:
            found += self.groups[inner].children
        return found

    def with_ancestors(self, number: int | None) -> list[int]:
        """Return a group and all groups that contain it, inner groups first."""
        found: list[int] = []
        while number is not None:
            found.append(number)
            number = self.groups[number].parent
        return found


@with_gc_disabled
def group(
    graph: Graph, *, limit: int = 100, rows: int | None = None, loops: bool = False
) -> Groups:
    """Return the groups of a graph, each with at most `limit` direct children.

    A leaf belongs to the group of its first user. Two groups are isomorphic (`Group.like`) if their
    operations, attributes, outputs, leaves, inner edges and module classes are equal. Names may
    differ. Attributes that are a position in a sequence, such as the index of a `select`, may
    differ as well.

    Args:
        graph: the graph.
        limit: maximum number of direct children of a group.
        rows: if more than `rows` modules follow each other, they are split into about `rows` runs
            of a few modules each, so that a picture can show all runs. If None, modules are split
            only if there are more than `limit`, into a few runs of many modules.
        loops: True to group chains of views, and to group repetitions even if `limit` is not
            exceeded.

    Raises:
        ValueError: if `limit` is less than 4.
    """
    return ModuleTree(graph, loops=loops).split(limit, rows)


class ModuleTree:
    """The nested modules of a graph, which `split` turns into groups of limited size.

    A drawing that tries several limits calls `split` on the same tree.
    """

    def __init__(self, graph: Graph, *, loops: bool) -> None:
        self._graph, self._loops = graph, loops
        edges = by_target(graph.edges)
        made, order = order_of(graph, edges)
        top, parts = _modules(graph, edges, order, made)
        if made:
            parts += gather_gradients(graph, [top, *[part.items for part in parts]])
        parts += gather_calls(graph, [top, *[part.items for part in parts]])
        if loops:
            parts += gather_views(graph, edges, [top, *[part.items for part in parts]])
        self._top, self._parts = top, [(part, part.items) for part in parts]
        self._order = flatten(top)
        self._structure = Structure(graph, edges, self._order)

    def split(self, limit: int, rows: int | None) -> Groups:
        """Return the groups for a limit; `group` describes the arguments.

        Raises:
            ValueError: if `limit` is less than 4.
        """
        if limit < 4:
            raise ValueError(f"limit={limit} is too small for groups: pass 4 or more.")
        splitter = LevelSplitter(self._structure, limit, rows, self._loops)
        for part, items in reversed(self._parts):
            part.items = splitter.split(items)
            self._structure.close(part)
        operations = tuple(self._structure.operations)
        return _build_groups(self._graph, splitter.split(self._top), self._order, operations)


def _modules(
    graph: Graph, edges: Sequence[Edge], order: list[int], made: bool
) -> tuple[list[Item], list[Part]]:
    """Return the items of the top level, and a group for each module call, outer groups first.

    Each leaf is placed before its first user.

    Args:
        graph: the graph.
        edges: the edges of the graph.
        order: the nodes in topological order.
        made: True if `order` is the execution order. A container is then not a group if other
            operations ran between its modules, because the box of such a group would feed its own
            input.
    """
    nodes = graph.nodes
    places = places_of(order)
    never = len(order)
    first = [never] * never  # leaf -> position of its first user
    for edge in edges:
        leaf, place = edge.source, places[edge.target]
        # In a graph that was not recorded, a leaf may be used only by another leaf. Such a leaf
        # stays in the group of its scope.
        if place < first[leaf] and nodes[leaf].leaf and not nodes[edge.target].leaf:
            first[leaf] = place
    leaves: dict[int, list[int]] = {}  # node -> the leaves to insert before it
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
        apart |= interrupted_containers([scopes[i] for i in row])
    parts = [Part("graph", RangeName(title, f"{title}#", 1, 1), []) for _, title in graph.segments]
    top: list[Item] = [*parts]
    # In a joined graph, nodes before the first backward pass are at the top level.
    for items, row in zip([top, *[part.items for part in parts]], rows, strict=True):
        levels = {"": items}
        for i in row:
            scope = scopes[i]
            if scope not in levels:
                parts += _add_modules(levels, scope, nodes[i], apart)
            level = levels[scope]
            if i in leaves:
                level += leaves[i]
            level.append(i)
    return top, parts


_LISTS = ("ModuleList", "ModuleDict")  # containers of modules, which are never called


def _lists(nodes: Sequence[Node]) -> set[str]:
    """Return the paths of `ModuleList`s and `ModuleDict`s, which compute nothing themselves."""
    found: set[str] = set()
    for scope, classes in {(node.scope, node.module_class) for node in nodes}:
        if not any(kind in classes for kind in _LISTS):
            continue
        kinds = classes.split("/")
        names = scope.split(".")
        if len(kinds) == len(names):
            for depth, kind in enumerate(kinds):
                if kind.partition("(")[0] in _LISTS:
                    found.add(".".join(names[: depth + 1]))
    return found


def _add_modules(
    levels: dict[str, list[Item]], scope: str, node: Node, apart: set[str]
) -> list[Part]:
    """Add a level for each module on the path of a scope that has none yet.

    Args:
        levels: path of a module -> items of the module; changed in place.
        scope: path of a module call.
        node: a node with this scope, which records the classes of the modules.
        apart: paths of containers. A container gets no level, and its name becomes a prefix of the
            names inside.

    Returns:
        The new groups, outer groups first.
    """
    missing = []
    path = scope
    while path not in levels:
        outer, _, segment = path.rpartition(".")
        missing.append((path, outer, segment))
        path = outer
    classes = node.module_class.split("/")
    unknown = scope.count(".") + 1 - len(classes)  # number of outer modules without a class
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
        kind = classes[depth - unknown] if depth >= unknown else ""
        part = Part("module", _parse_name(name), [], kind)
        levels[outer].append(part)
        levels[path] = part.items
        found.append(part)
    return found


def _scopes(nodes: Sequence[Node]) -> list[str]:
    """Return the scope (path of the module call) by which each node is grouped.

    If the model has no submodules or was called several times, its name is added to the scopes:
    "Policy", "Policy#2", or "model", "model#2" if the model computes nothing outside of its
    submodules.
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


@lru_cache(maxsize=4096)  # names recur often in a model
def _parse_name(text: str) -> RangeName:
    found = _DIGITS.search(text) if text[-1:].isdecimal() else None
    if found is None:
        return RangeName(text, f"{text}#", 1, 1)
    number = int(found[0])
    return RangeName(text, text[: found.start()], number, number)


def _build_groups(
    graph: Graph, top: list[Item], order: list[int], operations: tuple[int, ...]
) -> Groups:
    """Convert the parts to `Group`s, parents before children, in topological order."""
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
        # "/" is replaced, because TensorBoard would split the name there.
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
