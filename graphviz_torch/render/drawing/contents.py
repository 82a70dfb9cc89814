"""Drawing steps: count the contents of groups, and assign collectives to elements."""

from __future__ import annotations

from collections.abc import Iterable

from ...graph import Collective
from ...graph.collective import by_node
from .drawing import Drawing
from .values import Contents, Leaf


def count_contents(drawing: Drawing) -> Drawing:
    """Compute `Drawing.contents`, and return the new drawing.

    Contents are computed for each group whose box or frame shows a summary: closed groups, and
    groups that are drawn in place of several identical groups.
    """
    if drawing.groups is None:
        return drawing
    drawn = drawing.tree.framed_groups.union(drawing.boxes)
    folds = [number for number in drawing.tree.represented_groups if number in drawn]
    counted = [*drawing.boxes, *folds]
    if not counted:
        return drawing
    represented = _represented_groups(drawing, counted)
    return drawing.having(
        contents={number: _contents(drawing, number, represented[number]) for number in counted}
    )


def _represented_groups(drawing: Drawing, counted: Iterable[int]) -> dict[int, list[int]]:
    """Return drawn group -> itself and the hidden groups that it represents."""
    assert drawing.groups is not None
    assert drawing.keys is not None
    tree, keys = drawing.groups, drawing.keys
    first: dict[int, int] = {}  # hidden group -> the identical group that is drawn instead
    below = {family: tree.with_descendants(family) for family in keys.repeated}
    for number in dict.fromkeys(keys.hidden.values()):
        first.update(zip(tree.with_descendants(number), below[keys.family[number]], strict=True))
    found = {number: [number] for number in counted}
    for number in first:
        like = number
        while like in first:
            like = first[like]
        if like in found:
            found[like].append(number)
    return found


def _ids(drawing: Drawing, groups: Iterable[int]) -> list[int]:
    """Return the sorted ids of all nodes in these groups."""
    assert drawing.groups is not None
    tree = drawing.groups
    inside = tree.groups
    return sorted(
        [i for n in groups for inner in tree.with_descendants(n) for i in inside[inner].nodes]
    )


def _contents(drawing: Drawing, number: int, represented: list[int]) -> Contents:
    nodes = drawing.graph.nodes
    ids = _ids(drawing, represented)
    own = _ids(drawing, [number]) if len(represented) > 1 else ids
    kept = sum([drawing.interest[n].saved_bytes for n in represented if n in drawing.interest])
    return Contents(len(represented), tuple([nodes[i] for i in ids]), tuple(own), kept)


def place_collectives(drawing: Drawing) -> Drawing:
    """Assign each collective to one drawn element, and return the new drawing.

    A collective is assigned to the element that shows its node. If no element shows the node, the
    collective is assigned to the frame, box or node of its module, or to the nearest drawn element
    that contains or represents the module.
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
    return drawing.having(collectives=sent)


class _Modules:
    """A lookup of the key of the element that shows a module."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        tree, keys = drawing.groups, drawing.keys
        self.groups = tree.groups if tree else ()
        self.paths: dict[str, int] = {}
        within: list[str] = []  # for each group, the path of the innermost module around it
        for part in self.groups:
            outer = "" if part.parent is None else within[part.parent]
            name = part.name.partition("#")[0] if part.kind == "module" else ""
            within.append(".".join(filter(None, (outer, name))))
            if name:
                self.paths.setdefault(within[-1], part.id)
        # hidden group -> the identical group that is drawn instead
        self.like: dict[int, int] = {}
        if tree and keys:
            for number in dict.fromkeys(keys.hidden.values()):
                first = tree.with_descendants(keys.family[number])
                self.like.update(zip(tree.with_descendants(number), first, strict=True))
        # Open group without a frame -> the only node inside, which has the group's title.
        parts = drawing.tree.parts
        self.alone = {
            home: part.node for part, _, home in parts if type(part) is Leaf and part.module
        }

    def key(self, module: str) -> int | None:
        """Return the key of the node, box or frame that shows a module.

        Return None if no drawn element shows the module.
        """
        path = module
        while path and path not in self.paths:
            path = path.rpartition(".")[0]
        number = self.paths.get(path)
        while number is not None:
            while number in self.like:
                number = self.like[number]
            key = self._visible_key(number)
            if key is not None:
                return key
            number = self.groups[number].parent
        return None

    def _visible_key(self, number: int) -> int | None:
        tree, keys = self.drawing.tree, self.drawing.keys
        if keys and number in keys.box:
            return ~keys.box[number]
        return ~number if number in tree.framed_groups else self.alone.get(number)
