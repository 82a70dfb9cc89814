"""The step that finds families: consecutive identical groups, which are drawn once."""

from __future__ import annotations

from collections.abc import Sequence

from ..groups.groups import Groups
from ..groups.repeated_blocks import families
from .drawing import Drawing

_MAX_UNPACKED = 12  # groups in a row that are drawn without the runs around them
_MIN_LOOP_STEPS = 3  # fewer groups that feed each other are not drawn as a loop


def fold_repeats(drawing: Drawing) -> Drawing:
    """Return the drawing with families of consecutive identical groups."""
    tree = drawing.groups
    if tree is None or not drawing.fold:
        return drawing
    rows: dict[int | None, list[tuple[int, ...]]] = {}
    waiting = [drawing.start]
    for number in waiting:  # grows during the loop; only the first of a family is ever opened
        children = tree.roots if number is None else tree.groups[number].children
        if children:
            rows[number] = families_in(drawing, children)
            waiting += [members[0] for members in rows[number]]
    return drawing.having(families=rows)


def families_in(drawing: Drawing, children: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the families among the groups directly in a level; a run may become its groups."""
    tree = drawing.groups
    assert tree is not None
    if not drawing.fold:
        return [(child,) for child in children]
    found = families(tree, _unpack_runs(tree, children))
    if drawing.fold == "loops":
        found = [part for family in found for part in _as_loop(drawing, family)]
    return found


def _as_loop(drawing: Drawing, family: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the family if its groups are steps of a loop or feed each other; else each group."""
    tree = drawing.groups
    assert tree is not None
    if len(family) >= _MIN_LOOP_STEPS:
        one, other = (tree.groups[number] for number in sorted(family)[-2:])
        first = set(tree.operations[slice(*one.span)])
        then = set(tree.operations[slice(*other.span)])
        if one.kind == "run" or any(
            edge.source in first and edge.target in then for edge in drawing.inner.edges
        ):
            return [family]
    return [(number,) for number in family]


def _unpack_runs(tree: Groups, children: Sequence[int]) -> Sequence[int]:
    """Replace runs that only contain a row of groups by that row, if it is short when folded."""
    groups = tree.groups
    rows = {n for n in children if groups[n].kind == "run" and not groups[n].nodes}
    if not rows:
        return children
    inside: list[int] = []
    for number in children:
        inside += groups[number].children if number in rows else [number]
    row = _unpack_runs(tree, tuple(inside))
    longest = max(len(families(tree, children)), _MAX_UNPACKED)
    return row if len(families(tree, row)) <= longest else children
