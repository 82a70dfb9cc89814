"""The step that finds groups which are drawn once for all that are like them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..groups.groups import Group, Groups
from .drawing import Drawing

# So many groups in a row are few enough to be drawn without the runs that hold them.
_SHORT = 12
# So few graphs of a step are drawn each, though they are alike: their names tell what they are.
_GRAPHS = 3
_LOOP = 3  # groups that feed each other are drawn as a loop
_NUMBER = re.compile(r"[#\d]+")  # of a module in a row, and of a call of one


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
            found = _families(tree, _unpacked(tree, children))
            if drawing.fold == "loops":
                found = [part for family in found for part in _as_loop(drawing, family)]
            families[number] = found
            waiting += [members[0] for members in found]
    return drawing.having(families=families)


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
    longest = max(len(_families(tree, children)), _SHORT)
    return unpacked if len(_families(tree, unpacked)) <= longest else children


def _families(tree: Groups, children: Iterable[int]) -> list[tuple[int, ...]]:
    """Groups that follow each other, are alike, and have no operation between them.

    Modules have names that differ in a number alone: an encoder is not drawn for a decoder.
    """
    groups = tree.groups
    families: list[list[int]] = []
    for child in children:
        part = groups[child]
        last = groups[families[-1][-1]] if families else None
        if last is not None and _follows(last, part):
            families[-1].append(child)
        else:
            families.append([child])
    found: list[tuple[int, ...]] = []
    for family in families:
        few = groups[family[0]].kind == "graph" and len(family) <= _GRAPHS
        found += [(child,) for child in family] if few else [_complete_first(tree, family)]
    return found


def _complete_first(tree: Groups, family: list[int]) -> tuple[int, ...]:
    """The family, the one that is drawn first: a loop's first step may lack what the others do."""
    first = max(
        family, key=lambda number: tree.groups[number].span[1] - tree.groups[number].span[0]
    )
    return (first, *[number for number in family if number != first])


def _follows(last: Group, part: Group) -> bool:
    adjacent = last.span[1] == part.span[0] and part.kind != "chain"
    return adjacent and last.like == part.like and _stem(last) == _stem(part)


def _stem(part: Group) -> str:
    return _NUMBER.sub("", part.path.rpartition(".")[2]) if part.kind == "module" else ""
