"""Group the elements of a drawing into the nodes of a flow diagram.

A node is a module, at a level of modules that fits the picture. An operation outside of modules
belongs to the previous node if the operation uses results of only this node. If the operation uses
results of several nodes, it is a node itself, at which links meet.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from ...graph import Finding, Graph
from ..drawing.drawing import Drawing
from ..drawing.steps import draw
from ..drawing.tree import Open
from ..groups.groups import Group

_READABLE_COUNTS: Final = range(8, 67)  # numbers of nodes that are easy to read
MAX_NODES: Final = 110  # maximum number of nodes if no level has a readable count
_DEPTHS = (6, 5, 4, 3, 2, 1)
_CALL = re.compile(r"#\d+")  # call number of a module that is called several times


class FlowNodes:
    """The elements of a drawing, grouped into the nodes of a flow diagram.

    Each flow node is identified by the key of its first element.
    """

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        groups = drawing.groups.groups if drawing.groups else ()
        self._outer = {group.parent for group in groups if group.kind == "module"}
        self._modules: dict[int | None, Group | None] = {}  # group -> innermost module around it
        self.sources: dict[int, dict[int, None]] = defaultdict(dict)  # key -> keys of its sources
        for source, target in drawing.ends:
            self.sources[target][source] = None
        self.home = self._homes()

    def __len__(self) -> int:
        return len(set(self.home.values()))

    @property
    def max_nesting(self) -> int:
        """Depth of the deepest open group. Groups of backward passes are not counted."""
        groups, parts = self.drawing.groups, self.drawing.tree.parts
        if groups is None:
            return 0
        opened = (part.group for part, _, _ in parts if isinstance(part, Open))
        return max(len(groups.with_ancestors(number)) for number in opened) - bool(
            self.drawing.graph.segments
        )

    def _homes(self) -> dict[int, int]:
        drawing, sources = self.drawing, self.sources
        outputs = {drawing.key(node) for node, _ in drawing.graph.outputs}
        home: dict[int, int] = {}
        first: dict[int, int] = {}  # module -> the flow node of all operations inside
        for key in _topological_order(drawing, sources):
            before = {home[source] for source in sources[key] if source in home}
            module = self.module(key)
            joins = len(before) == 1 and key not in outputs and not _leaf(drawing, key)
            if joins and (not module or self.module(next(iter(before))) == module):
                home[key] = next(iter(before))
            elif module and key not in outputs and not _leaf(drawing, key):
                home[key] = first.get(module.id, key)
            else:
                home[key] = key
            if module:
                first.setdefault(module.id, home[key])
        return home

    def join_calls(self) -> None:
        """Merge all calls of a module into one node; outside of modules, merge equal operations."""
        first: dict[str, int] = {}
        moved: dict[int, int] = {}
        for key in dict.fromkeys(self.home.values()):
            name = strip_call_number(self.path(key)) or f" {self._kind(key)}"
            moved[key] = first.setdefault(name, key)
        self.home = {key: moved[place] for key, place in self.home.items()}

    def _kind(self, key: int) -> str:
        """Return a key for merging elements outside of modules: those with equal keys are merged.

        The key is the operation of a node, or the key of a group as text.
        """
        return self.drawing.graph.nodes[key].title if key >= 0 else str(key)

    def module(self, key: int) -> Group | None:
        """Return the module of an element; None outside of modules."""
        groups = self.drawing.groups
        if groups is None:
            return None
        number = self.group(key)
        if number not in self._modules:
            around = (groups.groups[each] for each in groups.with_ancestors(number))
            inner = next((g for g in around if g.kind in ("module", "graph")), None)
            self._modules[number] = inner if inner and inner.kind == "module" else None
        found = self._modules[number]
        # An operation directly in a module that has submodules counts as outside of modules.
        return None if found and key >= 0 and found.id in self._outer else found

    def leaves_module(self, place: int, source: int, target: int | None) -> bool:
        """Return True if a result of a flow node's module is used outside of the module.

        Args:
            place: the flow node.
            source: key of the element in the flow node that computed the result.
            target: key of the element that uses the result; None for an output of the graph.
        """
        path = strip_call_number(self.path(place))
        if not path or strip_call_number(self.path(source)) != path:
            return False
        return target is None or strip_call_number(self.path(target)) != path

    def path(self, key: int) -> str:
        """Return the path of an element's module; "" outside of modules."""
        module = self.module(key)
        return module.path if module else ""

    def group(self, key: int) -> int | None:
        """Return the id of a closed group, or of the open group that contains a node."""
        return ~key if key < 0 else self.drawing.tree.homes.get(key)


def strip_call_number(path: str) -> str:
    """Remove the call numbers from the path of a module."""
    return _CALL.sub("", path)


def flow_nodes_of(graph: Graph, findings: tuple[Finding, ...]) -> FlowNodes:
    """Return the flow nodes of a graph: its modules, at the deepest level that fits a picture.

    If no level fits, as in a loop of many steps, all calls of a module become one node.
    """
    tried: list[FlowNodes] = []
    for depth in _DEPTHS:
        if tried and depth >= tried[-1].max_nesting:
            continue  # this depth opens the same groups as the previous one
        tried.append(_at_depth(graph, findings, depth))
        if len(tried[-1]) in _READABLE_COUNTS:
            return tried[-1]
    if tried[-1].max_nesting:
        outer = _at_depth(graph, findings, 0)  # only the outermost modules are nodes
        if len(outer) in _READABLE_COUNTS:
            return outer
    fitting = (each for each in tried if len(each) <= MAX_NODES)
    found = next(fitting, None)
    if found is not None:
        return found
    for each in tried:
        each.join_calls()
        if len(each) <= MAX_NODES:
            break
    return each


def _at_depth(graph: Graph, findings: tuple[Finding, ...], depth: int) -> FlowNodes:
    options = {"depth": depth, "fold": False, "parameters": "fold", "findings": findings}
    return FlowNodes(draw(graph, options))  # type: ignore[arg-type]


def _topological_order(drawing: Drawing, sources: Mapping[int, Mapping[int, None]]) -> list[int]:
    """Return the keys in topological order, except where closed groups form a cycle."""
    keys = sorted([*drawing.nodes, *(~n for n in drawing.boxes)], key=drawing.place)
    done: dict[int, None] = {}
    for key in keys:
        stack = [key]
        opened: set[int] = set()
        while stack:
            top = stack[-1]
            rest = [s for s in sources.get(top, ()) if s not in done and s not in opened]
            if top in opened or not rest:
                stack.pop()
                done[top] = None
            opened.add(top)
            stack += sorted(rest, key=drawing.place, reverse=True) if top not in done else []
    return list(done)


def _leaf(drawing: Drawing, key: int) -> bool:
    return key >= 0 and bool(drawing.graph.nodes[key].leaf)
