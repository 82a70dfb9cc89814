"""The steps that say what is inside a group, and in all blocks that one is drawn for."""

from __future__ import annotations

from collections.abc import Iterable

from ...graph import Collective
from ...graph.collective import by_node
from .drawing import Contents, Drawing
from .tree import Leaf


def count_contents(drawing: Drawing) -> Drawing:
    """The drawing with what is in closed groups, and in all blocks that one is drawn for."""
    if drawing.groups is None:
        return drawing
    drawn = drawing.tree.opened.union(drawing.boxes)
    folds = [number for number in drawing.tree.repeated if number in drawn]
    counted = [*drawing.boxes, *folds]
    if not counted:
        return drawing
    stands_for = _stands_for(drawing, counted)
    return drawing.having(
        contents={number: _contents(drawing, number, stands_for[number]) for number in counted}
    )


def _stands_for(drawing: Drawing, counted: Iterable[int]) -> dict[int, list[int]]:
    """By group that is drawn, itself and all groups that are not drawn and that it stands for."""
    assert drawing.groups is not None
    assert drawing.keys is not None
    tree, keys = drawing.groups, drawing.keys
    first: dict[int, int] = {}  # group that is hidden -> its like in the first of the family
    below = {family: tree.below(family) for family in keys.repeated}
    for number in dict.fromkeys(keys.hidden.values()):
        first.update(zip(tree.below(number), below[keys.family[number]], strict=True))
    found = {number: [number] for number in counted}
    for number in first:
        like = number
        while like in first:
            like = first[like]
        if like in found:
            found[like].append(number)
    return found


def _ids(drawing: Drawing, groups: Iterable[int]) -> list[int]:
    """All nodes in these groups."""
    assert drawing.groups is not None
    tree = drawing.groups
    inside = tree.groups
    return sorted([i for n in groups for inner in tree.below(n) for i in inside[inner].nodes])


def _contents(drawing: Drawing, number: int, stands_for: list[int]) -> Contents:
    nodes = drawing.graph.nodes
    ids = _ids(drawing, stands_for)
    own = _ids(drawing, [number]) if len(stands_for) > 1 else ids
    kept = sum([drawing.worth[n][2] for n in stands_for if n in drawing.worth])
    return Contents(len(stands_for), tuple([nodes[i] for i in ids]), tuple(own), kept)


def place_collectives(drawing: Drawing) -> Drawing:
    """The drawing with what ranks sent to each other, each collective at one place.

    That is the node which sends, else the module that it is for: its frame, its box, or the node
    that is all of it. Where that is not drawn, it is what is drawn around it, or for it.
    """
    sent: dict[int | None, list[Collective]] = {}
    if not drawing.graph.collectives:
        return drawing
    inside = by_node(drawing.graph.collectives)
    drawn = {*drawing.nodes, *(~number for number in drawing.boxes)}
    find = _Modules(drawing).key
    for each in drawing.graph.collectives:
        key = None if each.node not in inside or each.parameters else drawing.key(each.node)
        if key not in drawn:
            key = find(each.module)
        if key is not None or drawing.start is None:
            sent.setdefault(key, []).append(each)
    return drawing.having(sent=sent)


class _Modules:
    """Looks up the key of what is drawn of a module."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        tree, keys = drawing.groups, drawing.keys
        self.groups = tree.groups if tree else ()
        self.paths: dict[str, int] = {}
        within: list[str] = []  # of each group, the path of the innermost module
        for part in self.groups:
            outer = "" if part.parent is None else within[part.parent]
            name = part.name.partition("#")[0] if part.kind == "module" else ""
            within.append(".".join(filter(None, (outer, name))))
            if name:
                self.paths.setdefault(within[-1], part.id)
        self.like: dict[int, int] = {}  # group that is hidden -> its like in the first of a family
        if tree and keys:
            for number in dict.fromkeys(keys.hidden.values()):
                first = tree.below(keys.family[number])
                self.like.update(zip(tree.below(number), first, strict=True))
        # Open groups without a frame that hold one node, which has the module's name.
        parts = drawing.tree.parts
        self.alone = {
            home: part.node for part, _, home in parts if type(part) is Leaf and part.module
        }

    def key(self, module: str) -> int | None:
        """Of a node, of a closed or framed group, or None."""
        path = module
        while path and path not in self.paths:
            path = path.rpartition(".")[0]
        number = self.paths.get(path)
        while number is not None:
            while number in self.like:
                number = self.like[number]
            key = self._shown(number)
            if key is not None:
                return key
            number = self.groups[number].parent
        return None

    def _shown(self, number: int) -> int | None:
        tree, keys = self.drawing.tree, self.drawing.keys
        if keys and number in keys.box:
            return ~keys.box[number]
        return ~number if number in tree.opened else self.alone.get(number)
