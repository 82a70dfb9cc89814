"""Drawing step: find families, which are consecutive identical groups to be drawn once."""

from __future__ import annotations

from collections.abc import Sequence

from ..groups.groups import Groups
from ..groups.repeated_blocks import families
from .drawing import Drawing

# A run is a group of consecutive nodes. If the groups inside the runs of a level form at most this
# many families, the groups are drawn instead of the runs.
_MAX_UNPACKED = 12
_MIN_LOOP_STEPS = 3  # minimum number of identical groups that are drawn as a loop


def fold_repeats(drawing: Drawing) -> Drawing:
    """Find the families of consecutive identical groups, and return the new drawing."""
    tree = drawing.groups
    if tree is None or not drawing.fold:
        return drawing
    rows: dict[int | None, list[tuple[int, ...]]] = {}
    waiting = [drawing.start]
    # The loop appends to `waiting`. Only the first group of a family can be opened.
    for number in waiting:
        children = tree.roots if number is None else tree.groups[number].children
        if children:
            rows[number] = families_in(drawing, children)
            waiting += [members[0] for members in rows[number]]
    return drawing.having(families=rows)


def families_in(drawing: Drawing, children: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the families that the children of a group form.

    Some families contain the groups inside a run (a group of consecutive nodes) instead of the run.
    """
    tree = drawing.groups
    assert tree is not None
    if not drawing.fold:
        return [(child,) for child in children]
    found = families(tree, _unpack_runs(tree, children))
    if drawing.fold == "loops":
        found = [part for family in found for part in _as_loop(drawing, family)]
    return found


def _as_loop(drawing: Drawing, family: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the family if its groups are the steps of a loop, otherwise one family per group.

    Groups are the steps of a loop if they are runs (of consecutive nodes), or if each feeds the
    next.
    """
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
    """Replace runs that contain only groups with these groups, and return the children.

    A run is a group of consecutive nodes. A run is not replaced if the result would have too many
    families, each of which consists of consecutive identical groups.
    """
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
