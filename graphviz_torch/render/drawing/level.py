"""How much of a graph is drawn: all that a page has room for, the telling parts first.

Where the page has room for every operation, each is drawn. Else blocks that are alike are drawn
once, modules begin closed, and are opened as long as there is room. `depth`, `module` and `detail`
ask for a certain part instead, on a page of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from ..color_by import in_values
from ..groups.order import in_modules
from .drawing import Drawing, Fold
from .group import group_nodes

# How many things a drawing may show where no page bounds it.
LIMITS: Final = (250, 180, 130, 100, 75, 55, 40, 30, 20, 12, 6)
# With more nodes than this it draws blocks that are alike once.
_MANY = 100
_SMALL = 30  # with no more operations it draws each step of a loop
_LEVEL = 100  # things directly in a group, at most
_PAGE_LEVELS = (_LEVEL, 26, 20, 14, 8)  # the same on a page: the first that it has room for
_MOST_WHOLE = 90  # operations that a page may have room for

Step = Callable[[Drawing], Drawing]


class Level(NamedTuple):
    """One way to put the nodes into groups, and how many of these may be opened."""

    size: int | None  # things directly in a group, at most; None: every node, and no groups
    rows: int | None  # modules in a row, at most: a longer row is drawn as runs of a few
    limit: int | None  # things that are drawn, at most; None: as many as fit a page
    fold: Fold  # are blocks that are alike drawn once, or the steps of a loop
    whole: bool = False  # must all of them be open


def levels(drawing: Drawing) -> Iterator[Level]:
    """The levels to try, the fullest first; of what a caller asked for, the one that shows it."""
    options = drawing.options
    count = max(4, len(drawing.graph.nodes))
    if _is_asked(drawing):
        fold = _fold(drawing)
        grouped = drawing.graph.segments or in_modules(drawing.graph)
        most = _most(drawing)
        closing = fold or options["depth"] is not None or _count(drawing) > most
        if grouped or closing or options["module"]:
            yield Level(_LEVEL if closing else count, _LEVEL, most, fold)
        else:
            yield Level(None, _LEVEL, most, fold=False)
        return
    operations = _operations(drawing)
    if operations <= _MOST_WHOLE:
        loops: Fold = "loops" if operations > _SMALL and options["fold"] is None else False
        yield Level(count, count, None, options["fold"] or loops, whole=True)
    for size in _PAGE_LEVELS:
        yield Level(size, size, None, fold=True)


def _is_asked(drawing: Drawing) -> bool:
    """Did the caller say how much to draw? Pictures from left to right are no page, either."""
    options = drawing.options
    return (
        options["depth"] is not None
        or options["limit"] is not None
        or drawing.draws_each
        or options["direction"] not in ("TB", "BT")
    )


def _fold(drawing: Drawing) -> bool:
    """Are blocks that are alike drawn once?"""
    options = drawing.options
    fold, depth = options["fold"], options["depth"]
    if fold is None and options["detail"] == "full":
        return False
    if fold is None and depth is not None:
        # Else each closed group has a value of its own to show.
        return not in_values(options["color_by"])
    if fold is None:
        return _count(drawing) > min(_most(drawing), _MANY)
    return fold


def _count(drawing: Drawing) -> int:
    """The nodes that are not written inside others."""
    return len(drawing.graph.nodes) - len(drawing.inner.folded)


def _operations(drawing: Drawing) -> int:
    folded = drawing.inner.folded
    return sum(not node.leaf and node.id not in folded for node in drawing.graph.nodes)


def _most(drawing: Drawing) -> int:
    limit = drawing.options["limit"]
    return LIMITS[0] if limit is None else limit


def choose(start: Drawing, groups: Sequence[Step], level: Sequence[Step]) -> Drawing:
    """The drawing of a level.

    Args:
        groups: the steps for each level that is tried and groups the nodes anew.
        level: those for the level that is drawn; the first of them opens groups.
    """
    opened = start
    absent: ValueError | None = None  # raised where no level has the module
    known = set()
    for each in levels(start):
        try:
            grouped = group_nodes(start.having(size=each.size, rows=each.rows, fold=each.fold))
        except ValueError as error:  # a run of operations is in the tree of its own level only
            absent = absent or error
            continue
        if grouped.modules is not start.modules:
            start = start.having(modules=grouped.modules)
        cut = grouped.groups and len(grouped.groups.groups), each.fold, each.whole
        if cut in known:
            continue  # another size may cut nothing else
        known.add(cut)
        opened = level[0](taken(grouped, groups).having(limit=each.limit, whole=each.whole))
        if opened.fits:
            break
    if absent is not None and not known:
        raise absent
    return taken(opened, level[1:])


def taken(drawing: Drawing, steps: Sequence[Step]) -> Drawing:
    """The drawing after these steps."""
    for step in steps:
        drawing = step(drawing)
    return drawing
