"""Which levels of a graph to try: as much as fits a page, the interesting things first."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from ..color_by import in_values
from .drawing import Drawing, Fold

# How many things a drawing may show: the first of these that fits a page.
LIMITS: Final = (250, 180, 130, 100, 75, 55, 40, 30, 20, 12, 6)
# With more nodes than this it draws blocks that are alike once.
_MANY = 100
_SMALL = 40  # with no more nodes it draws each step of a loop
_LEVEL = 100  # things directly in a group, at most
_SMALL_LEVEL = 25  # the same where a level of the usual size does not fit a page
_ROWS = (50, 25, 12)  # the longest row of modules, each in its turn where too little is drawn:
ENOUGH: Final = 20  # things


class Level(NamedTuple):
    """How much of a graph to show: each limit in its turn, until the drawing fits a page."""

    size: int | None  # things directly in a group, at most; None: every node, and no groups
    rows: int | None  # modules in a row, at most: a longer row is drawn as runs of a few
    limits: tuple[int, ...]  # things that are drawn, at most
    fold: Fold  # are blocks that are alike drawn once, or the steps of a loop
    whole: bool = False  # must all of them be open
    cut: bool = False  # are levels cut that have room for all


def paged(drawing: Drawing) -> bool:
    """Is it laid out in columns, so that it fits a page? Only one whose data flows up or down."""
    return drawing.options["direction"] in ("TB", "BT")


def levels(drawing: Drawing) -> Iterator[Level]:
    """The levels to try, the fullest first; of what a caller asked for, the one that shows it."""
    options = drawing.options
    asked = (
        options["depth"] is not None
        or (options["limit"] or 0) >= _MANY  # fewer than that are to fit a page
        or options["fold"] is False
        or not paged(drawing)
    )
    most, nodes = _most(drawing), max(4, len(drawing.graph.nodes))
    fold = _fold(drawing)
    closing = fold or _count(drawing) > most or options["depth"] is not None
    made_by = attrgetter("scope", "module_class")
    scoped = drawing.graph.parts or any(map(any, map(made_by, drawing.graph.nodes)))
    small = _count(drawing) <= _SMALL
    if not (scoped or closing or options["module"]):
        if not (small or asked):
            yield Level(nodes, nodes, (most,), fold="loops", whole=True)
        yield Level(None, _LEVEL, (most,), fold=False)
        if asked:
            return
        fold, closing = fold is None, True
    elif fold is None:  # before a block is closed, those that are alike are drawn once
        loops: Fold = False if small or asked else "loops"
        yield Level(_LEVEL if closing else nodes, nodes, (most,), fold=loops, whole=True)
        fold = closing = True
    limits = (most,) if asked else (most, *[limit for limit in LIMITS if limit < most])
    size = _LEVEL if closing else nodes
    yield Level(size, _LEVEL, limits, fold)
    if not asked:
        yield Level(min(size, _SMALL_LEVEL), None, limits, fold, cut=True)
        for rows in _ROWS:
            yield Level(size, rows, limits, fold, cut=True)


def _fold(drawing: Drawing) -> bool | None:
    """Are blocks that are alike drawn once? None: where else not all of them would be open."""
    options = drawing.options
    fold, depth = options["fold"], options["depth"]
    if fold is None and depth is not None:
        # Else each closed group has a value of its own to show.
        return not in_values(options["color_by"])
    if fold is None and _count(drawing) > max(_most(drawing), _MANY):
        return True
    return fold


def _count(drawing: Drawing) -> int:
    """The nodes that are not written inside others."""
    return len(drawing.graph.nodes) - len(drawing.inner.folded)


def _most(drawing: Drawing) -> int:
    limit = drawing.options["limit"]
    return LIMITS[0] if limit is None else limit
