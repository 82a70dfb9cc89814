"""The step that finds groups which are drawn once for all that are like them."""

from __future__ import annotations

from ..groups.families import families
from ..groups.groups import Groups
from .drawing import Drawing

# So many groups in a row are few enough to be drawn without the runs that hold them.
_SHORT = 12
_LOOP = 3  # groups that feed each other are drawn as a loop


def fold_repeats(drawing: Drawing) -> Drawing:
    """The drawing with the groups that follow each other and are alike put into families."""
    tree = drawing.groups
    if tree is None or not drawing.fold:
        return drawing
    rows: dict[int | None, list[tuple[int, ...]]] = {}
    waiting = [drawing.start]
    for number in waiting:  # only the first of a family is ever opened
        children = tree.roots if number is None else tree.groups[number].children
        if children:
            found = families(tree, _unpacked(tree, children))
            if drawing.fold == "loops":
                found = [part for family in found for part in _as_loop(drawing, family)]
            rows[number] = found
            waiting += [members[0] for members in found]
    return drawing.having(families=rows)


def _as_loop(drawing: Drawing, family: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The family, where its groups are the steps of a loop or follow in sequence; else each."""
    tree = drawing.groups
    assert tree is not None
    if len(family) >= _LOOP:
        one, other = (tree.groups[number] for number in sorted(family)[-2:])
        first = set(tree.operations[slice(*one.span)])
        then = set(tree.operations[slice(*other.span)])
        if one.kind == "run" or any(
            edge.source in first and edge.target in then for edge in drawing.inner.edges
        ):
            return [family]
    return [(number,) for number in family]


def _unpacked(tree: Groups, children: tuple[int, ...]) -> tuple[int, ...]:
    """Groups without the runs that only hold a row of them, where the row is short when folded."""
    groups = tree.groups
    rows = {n for n in children if groups[n].kind == "run" and not groups[n].nodes}
    if not rows:
        return children
    inside: list[int] = []
    for number in children:
        inside += groups[number].children if number in rows else [number]
    unpacked = _unpacked(tree, tuple(inside))
    longest = max(len(families(tree, children)), _SHORT)
    return unpacked if len(families(tree, unpacked)) <= longest else children
