"""Group the nodes of a drawing, and choose the amount of detail, so that the drawing fits a page.

If all operations fit, each is drawn. Otherwise identical blocks are drawn once, and modules are
opened, the most informative first, while the page has space. The options `depth`, `limit`,
`detail="full"` and `fold=False` set the amount of detail; the page may then have any size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from ...graph import Graph
from ...graph.gc import with_gc_disabled
from ...graph.immutable import NamedTuple
from ...graph.terminal import option
from ..color_by import colors_by_number
from ..groups.groups import Group, Groups, ModuleTree
from ..groups.order import has_modules
from ..groups.repeated_blocks import families
from ..labels import LINE_WIDTH
from .drawing import Drawing, Fold

# Values of `limit` (the maximum number of boxes) to try for a drawing that need not fit a page.
LIMITS: Final = (250, 180, 130, 100, 75, 55, 40, 30, 20, 12, 6)
_MAX_NODES_UNFOLDED = 100  # in a graph with more nodes, identical blocks are drawn once
_MAX_OPERATIONS_UNROLLED = 30  # in a graph with more operations, the steps of a loop are drawn once
MAX_GROUP_SIZE: Final = 100  # maximum number of direct children of a group
# Maximum numbers of direct children to try, in this order, until the drawing fits a page.
_PAGE_GROUP_SIZES = (MAX_GROUP_SIZE, 26, 20, 14, 8, 5)
_SHORT_LINE_WIDTH = 26  # characters per line of a name in a drawing that would be too wide
_MIN_BOXES = 5  # a drawing with closed groups and fewer boxes says too little
_MAX_FILL = 0.8  # share of a page that the parts of such a model may fill by estimate
_MAX_OPERATIONS_WHOLE = 90  # in a graph with more operations, some groups always stay closed

Step = Callable[[Drawing], Drawing]


class Level(NamedTuple):
    """One amount of detail: limits for grouping nodes and for opening groups."""

    size: int | None  # maximum number of direct children of a group; None: no groups
    rows: int | None  # maximum number of consecutive sibling modules; more are grouped into runs
    limit: int | None  # maximum number of boxes; None: as many as fit a page
    fold: Fold  # True to draw identical blocks once; "loops" for the steps of a loop only
    whole: bool = False  # True if every group must be open


def levels(drawing: Drawing) -> Iterator[Level]:
    """Yield the amounts of detail to try, the most detailed first.

    If the caller's options set the amount of detail, yield only this one.
    """
    options = drawing.options
    count = max(4, len(drawing.graph.nodes))
    if not drawing.must_fit_page:
        fold = _draws_once(drawing)
        grouped = drawing.graph.segments or has_modules(drawing.graph)
        most = _max_boxes(drawing)
        closing = fold or options["depth"] is not None or _count(drawing) > most
        if grouped or closing or options["module"]:
            yield Level(MAX_GROUP_SIZE if closing else count, MAX_GROUP_SIZE, most, fold)
        else:
            yield Level(None, MAX_GROUP_SIZE, most, fold=False)
        return
    operations = _operations(drawing)
    if operations <= _MAX_OPERATIONS_WHOLE:
        loops: Fold = (
            "loops" if operations > _MAX_OPERATIONS_UNROLLED and options["fold"] is None else False
        )
        yield Level(count, count, None, options["fold"] or loops, whole=True)
    for size in _PAGE_GROUP_SIZES:
        yield Level(size, size, None, fold=True)


def _draws_once(drawing: Drawing) -> bool:
    """Return True if identical blocks are drawn once."""
    options = drawing.options
    fold, depth = options["fold"], options["depth"]
    if fold is None and options["detail"] == "full":
        return False
    if fold is None and depth is not None:
        # If boxes are colored by a number, identical groups can have different numbers and colors,
        # so they are drawn separately.
        return not colors_by_number(options["color_by"])
    if fold is None:
        return _count(drawing) > min(_max_boxes(drawing), _MAX_NODES_UNFOLDED)
    return fold


def _count(drawing: Drawing) -> int:
    """Return the number of nodes that are not written inside other nodes."""
    return len(drawing.graph.nodes) - len(drawing.inner.folded)


def _operations(drawing: Drawing) -> int:
    folded = drawing.inner.folded
    return len([node for node in drawing.graph.nodes if not node.leaf and node.id not in folded])


def _max_boxes(drawing: Drawing) -> int:
    limit = drawing.options["limit"]
    return LIMITS[0] if limit is None else limit


def choose(start: Drawing, groups: Sequence[Step], level: Sequence[Step]) -> Drawing:
    """Try one amount of detail after another, and return the first drawing that fits its page.

    Args:
        start: the drawing before its nodes are grouped.
        groups: drawing steps to apply after grouping the nodes, for each amount of detail tried.
        level: drawing steps to apply after `groups`. The first, which opens groups, is applied for
            each amount of detail tried. The others are applied once, to the drawing that fits.

    If no drawing fits, all are tried again with names in shorter lines.
    """
    opened = start.having(fill=math.inf)
    for width in (LINE_WIDTH, _SHORT_LINE_WIDTH):
        opened = _choose_level(start.having(line_width=width), opened, groups, level[0])
        if opened.fits:
            break
    return apply_steps(opened, level[1:])


def _choose_level(start: Drawing, opened: Drawing, groups: Sequence[Step], step: Step) -> Drawing:
    """Return the first drawing that fits its page, or that which exceeds the page least.

    Args:
        start: the drawing before its nodes are grouped.
        opened: a drawing that does not fit, which is returned if no other one exceeds less.
        groups: drawing steps to apply after grouping the nodes.
        step: the drawing step that opens groups.
    """
    absent: ValueError | None = None  # raised if no `Level` has a group for the module
    known = set()
    for each in levels(start):
        try:
            grouped = group_nodes(start.having(size=each.size, rows=each.rows, fold=each.fold))
        # The requested group may be a run (consecutive nodes), which exists only at one `Level`.
        except ValueError as error:
            absent = absent or error
            continue
        if grouped.modules is not start.modules:
            start = start.having(modules=grouped.modules)
        cut = grouped.groups and len(grouped.groups.groups), each.fold, each.whole
        if cut in known:
            continue  # this `Level` leads to the same groups as an earlier one
        known.add(cut)
        drawn = step(apply_steps(grouped, groups).having(limit=each.limit, whole=each.whole))
        if not opened.fits:
            opened = drawn if drawn.fill <= opened.fill else opened
        elif drawn.fill <= _MAX_FILL and _count_boxes(drawn) > _count_boxes(opened):
            opened = drawn
        # If a model stays closed because opening it exceeds the page, smaller groups may fit.
        if opened.fits and not (_count_boxes(opened) < _MIN_BOXES and opened.closed_groups):
            break
    if absent is not None and not known:
        raise absent
    return opened


def _count_boxes(drawing: Drawing) -> int:
    return len(drawing.nodes) + len(drawing.boxes)


def apply_steps(drawing: Drawing, steps: Sequence[Step]) -> Drawing:
    """Apply drawing steps one after another, and return the resulting drawing."""
    for step in steps:
        drawing = step(drawing)
    return drawing


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


def titles_by_input(graph: Graph, tree: Groups) -> Mapping[int, str]:
    """Return titles such as "encoder(positive)" for the calls of modules called several times.

    The keys of the result are groups. A call gets such a title only if no other call of the module
    has a first input of the same name. An input is data that the caller passed to the model, or the
    result of another node.
    """
    modules = [part for part in tree.groups if part.kind == "module"]
    again = {_module(part) for part in modules if "#" in part.name}
    if not again:
        return {}
    calls = [part for part in modules if part.span[0] < part.span[1] and _module(part) in again]
    reads: dict[int, list[int]] = {}
    for edge in graph.edges:
        if not graph.nodes[edge.source].leaf:
            reads.setdefault(edge.target, []).append(edge.source)
    detached = {
        node: f"{cut.label}.detach()"
        for cut in graph.cuts
        if cut.how == "detach" and cut.label
        for node in cut.after
    }
    data: dict[int, tuple[str, str]] = {}  # group of a call -> (module, name of the first input)
    for part in calls:
        on = _read_first(graph, tree.operations[slice(*part.span)], reads, detached)
        if on:
            data[part.id] = _module(part), on
    times = Counter(data.values())
    return {
        number: f"{_stem(tree.groups[number])}({on})"
        for number, (module, on) in data.items()
        if times[module, on] == 1
    }


def _read_first(
    graph: Graph,
    operations: Iterable[int],
    reads: Mapping[int, list[int]],
    detached: Mapping[int, str],
) -> str:
    """Return the name of the first input that the operations of a module call read.

    Return "" if the input has no name, or if the first operation with an input reads several.

    Args:
        graph: the graph.
        operations: ids of the call's operations, in topological order.
        reads: operation -> the operations whose results it reads.
        detached: operation -> "name.detach()", for operations that read a detached tensor.
    """
    inside: set[int] = set()
    for node in operations:
        outside = set(reads.get(node, ())) - inside
        labels = {graph.nodes[source].label for source in outside}
        labels |= {detached[node]} if node in detached else set()
        given = {saved.label for saved in graph.nodes[node].saved if saved.kind == "input"}
        # If the operation reads a named result, it may have saved the same tensor without a name.
        labels |= given - {""} if labels else given
        if labels:
            return labels.pop() if len(labels) == 1 else ""
        inside.add(node)
    return ""


def _stem(part: Group) -> str:
    return part.name.partition("#")[0]


def _module(part: Group) -> str:
    """Return the path of a group's module, without the call number."""
    return part.path.removesuffix(part.name) + _stem(part)
