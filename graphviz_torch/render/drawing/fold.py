"""The step that finds groups which are drawn once for all that are like them."""

from __future__ import annotations

from collections.abc import Iterable

from ..groups.groups import Groups
from .drawing import Drawing

# A row of groups is short when folded if it has at most so many structures for each run of it.
_KINDS = 3
# So few graphs of a step are drawn each, though they are alike: their names tell what they are.
_GRAPHS = 3


def fold_repeats(drawing: Drawing) -> Drawing:
    """The drawing with the groups that follow each other and are alike put into families."""
    tree = drawing.groups
    if tree is None or not drawing.fold:
        return drawing
    families: dict[int | None, list[tuple[int, ...]]] = {}
    waiting = [drawing.start]
    for number in waiting:  # only the first of a family is ever opened
        children = tree.roots if number is None else tree.groups[number].children
        if children:
            families[number] = _families(tree, _unpacked(tree, children))
            waiting += [members[0] for members in families[number]]
    return drawing.having(families=families)


def _unpacked(tree: Groups, children: tuple[int, ...]) -> tuple[int, ...]:
    """Groups without the runs that only hold a long row of them: folded, the row is short."""
    groups = tree.groups
    rows = {n for n in children if groups[n].kind == "run" and not groups[n].nodes}
    kinds = {groups[inner].like for row in rows for inner in groups[row].children}
    if not rows or len(kinds) > _KINDS * len(rows):
        return children
    found: list[int] = []
    for number in children:
        found += groups[number].children if number in rows else [number]
    return _unpacked(tree, tuple(found))


def _families(tree: Groups, children: Iterable[int]) -> list[tuple[int, ...]]:
    """Groups that follow each other, are alike, and have no operation between them."""
    groups = tree.groups
    families: list[list[int]] = []
    for child in children:
        part = groups[child]
        last = groups[families[-1][-1]] if families else None
        if last is not None and last.span[1] == part.span[0] and last.like == part.like:
            families[-1].append(child)
        else:
            families.append([child])
    found: list[tuple[int, ...]] = []
    for family in families:
        few = groups[family[0]].kind == "graph" and len(family) <= _GRAPHS
        found += [(child,) for child in family] if few else [tuple(family)]
    return found
