"""Choose the amount of detail of a drawing, so that it fits a page.

If all operations fit, each is drawn. Otherwise identical blocks are drawn once, and modules are
opened, the most informative first, while the page has space. The options `depth`, `limit`,
`detail="full"` and `fold=False` set the amount of detail; the page may then have any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from ..color_by import colors_by_number
from ..groups.order import has_modules
from ..labels import LINE_WIDTH
from .drawing import Drawing, Fold
from .group import group_nodes

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
