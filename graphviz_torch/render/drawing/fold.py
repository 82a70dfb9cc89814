"""Drawing step: find families. A family consists of consecutive identical groups, drawn once."""

from __future__ import annotations

from collections.abc import Sequence

from ..groups.groups import Groups
from ..groups.repeated_blocks import families
from .drawing import Drawing

# If replacing the runs (groups of consecutive nodes) of a level by the groups inside them leaves at
# most this many families, the groups are drawn instead of the runs.
_MAX_UNPACKED = 12
_MIN_LOOP_STEPS = 3  # fewer identical groups are not drawn as a loop


def fold_repeats(drawing: Drawing) -> Drawing:
    """Return the drawing in which each family of consecutive identical groups is drawn once."""
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

    A run (a group of consecutive nodes) may be replaced by the groups inside it.
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
    """Return the family if its groups are the steps of a loop, else each group as its own family.

    Groups are also the steps of a loop if each feeds the next.
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
    """Return the children, with the groups inside a run in place of a run that has only groups.

    A run is a group of consecutive nodes. It stays if unpacking it leaves too many families, which
    consist of consecutive identical groups.
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
