"""Which things of a drawing are one place of a river: those of a module, at a level that fits.

What computes outside modules belongs to the place before it where it reads one, and is a place of
its own where streams meet.
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

MOST_PLACES: Final = 110  # on a sheet, where no level has some that are easier to read:
_SOME: Final = range(8, 67)
_DEPTHS = (6, 5, 4, 3, 2, 1)
_CALL = re.compile(r"#\d+")  # of a module that is called again


class Places:
    """A drawing, and by key, in their order, the place that it belongs to, as its first key."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        groups = drawing.groups.groups if drawing.groups else ()
        self._outer = {group.parent for group in groups if group.kind == "module"}
        self._modules: dict[int | None, Group | None] = {}  # by group
        self.sources: dict[int, dict[int, None]] = defaultdict(dict)  # of each key
        for source, target in drawing.ends:
            self.sources[target][source] = None
        self.home = self._homes()

    def __len__(self) -> int:
        return len(set(self.home.values()))

    @property
    def nested(self) -> int:
        """How many groups lie in each other, at most, beside the backward that they are of."""
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
        first: dict[int, int] = {}  # by module: what computes inside of it is one place
        for key in _ordered(drawing, sources):
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
        """All calls of a module become the first, and what lies between them becomes one."""
        first: dict[str, int] = {}
        moved: dict[int, int] = {}
        for key in dict.fromkeys(self.home.values()):
            name = without_call(self.path(key)) or f" {self._kind(key)}"
            moved[key] = first.setdefault(name, key)
        self.home = {key: moved[place] for key, place in self.home.items()}

    def _kind(self, key: int) -> str:
        """The operation of a node; the group of anything else."""
        return self.drawing.graph.nodes[key].title if key >= 0 else str(key)

    def module(self, key: int) -> Group | None:
        """The module of what is drawn; None outside of modules."""
        groups = self.drawing.groups
        if groups is None:
            return None
        number = self.group(key)
        if number not in self._modules:
            around = (groups.groups[each] for each in groups.with_ancestors(number))
            inner = next((g for g in around if g.kind in ("module", "graph")), None)
            self._modules[number] = inner if inner and inner.kind == "module" else None
        found = self._modules[number]
        # An operation of a module that has modules inside stands between these.
        return None if found and key >= 0 and found.id in self._outer else found

    def leaves_module(self, place: int, source: int, target: int | None) -> bool:
        """Return True if what `source` makes for `target` is an output of the place's module.

        Args:
            place: the first key of a place.
            source: a key at that place.
            target: a key, or None for what reads an output of the graph.
        """
        path = without_call(self.path(place))
        if not path or without_call(self.path(source)) != path:
            return False
        return target is None or without_call(self.path(target)) != path

    def path(self, key: int) -> str:
        """That of its module; "" outside of modules."""
        module = self.module(key)
        return module.path if module else ""

    def group(self, key: int) -> int | None:
        """The group that a key is, or lies in."""
        return ~key if key < 0 else self.drawing.tree.homes.get(key)


def without_call(path: str) -> str:
    """The path of a module without the number of its call."""
    return _CALL.sub("", path)


def places_of(graph: Graph, findings: tuple[Finding, ...]) -> Places:
    """Those of the deepest level of modules whose places fit a sheet.

    Where none fits, as in a loop of many steps, all calls of a module are one place.
    """
    tried: list[Places] = []
    for depth in _DEPTHS:
        if tried and depth >= tried[-1].nested:
            continue  # it opens the same groups
        tried.append(_at_depth(graph, findings, depth))
        if len(tried[-1]) in _SOME:
            return tried[-1]
    if tried[-1].nested:
        outer = _at_depth(graph, findings, 0)  # modules that lie in no other
        if len(outer) in _SOME:
            return outer
    fitting = (places for places in tried if len(places) <= MOST_PLACES)
    found = next(fitting, None)
    if found is not None:
        return found
    for places in tried:
        places.join_calls()
        if len(places) <= MOST_PLACES:
            break
    return places


def _at_depth(graph: Graph, findings: tuple[Finding, ...], depth: int) -> Places:
    options = {"depth": depth, "fold": False, "parameters": "fold", "findings": findings}
    return Places(draw(graph, options))  # type: ignore[arg-type]


def _ordered(drawing: Drawing, sources: Mapping[int, Mapping[int, None]]) -> list[int]:
    """The keys, sources first as far as closed groups make no circle."""
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
