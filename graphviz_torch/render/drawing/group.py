"""Drawing steps: group all nodes by module, loop and block, and find repeats to draw once."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from ...graph.gc import with_gc_disabled
from ...graph.terminal import option
from ..groups.call_titles import titles_by_input
from ..groups.groups import Groups, ModuleTree
from ..groups.repeated_blocks import families
from .drawing import Drawing


@with_gc_disabled
def group_nodes(drawing: Drawing) -> Drawing:
    """Group the nodes, with at most `drawing.size` children per group; return the new drawing.

    If `drawing.size` is None, return the drawing unchanged.

    Raises:
        ValueError: if the graph does not have the requested module.
    """
    if drawing.size is None:
        return drawing
    options = drawing.options
    loops = not drawing.draws_each and options["depth"] is None
    modules = drawing.modules or ModuleTree(drawing.graph, loops=loops)
    tree = modules.split(drawing.size, drawing.rows)
    module = options["module"]
    start = None if module is None else _find(tree, module)
    call_titles = titles_by_input(drawing.graph, tree)
    return drawing.having(modules=modules, groups=tree, start=start, call_titles=call_titles)


def _find(tree: Groups, module: str) -> int:
    paths = {part.path: part.id for part in reversed(tree.groups)}
    if module not in paths:
        near = get_close_matches(module, paths, 3) or list(paths)[:3]
        known = (
            f"The graph has {', '.join(map(repr, near))}, …"
            if paths
            else "The graph has no modules."
        )
        raise ValueError(f"{option('module', module)} is not in the graph. {known}")
    return paths[module]


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
