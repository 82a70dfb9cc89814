"""Which level of a graph is drawn: as much as fits a page, the interesting things first.

Levels are tried in turn: the first that fits a page, shows enough, and has few jumps is drawn.
Where columns cut the road from data to loss, a coarser level in one column is taken, if there is
one that shows more than half as much; where they part a skip from the road that it joins, as in the
U of a U-Net, one that shows less will do. Else it is the first that fits and shows enough, or one
that shows much more than others. Where none fits, it is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from ..color_by import in_values
from ..groups.cutting import is_row
from ..groups.groups import Groups
from ..groups.order import in_modules
from .drawing import Drawing, Fold
from .group import group_nodes

# How many things a drawing may show: the first of these that fits a page.
LIMITS: Final = (250, 180, 130, 100, 75, 55, 40, 30, 20, 12, 6)
# With more nodes than this it draws blocks that are alike once.
_MANY = 100
_SMALL = 30  # with no more operations it draws each step of a loop
_LEVEL = 100  # things directly in a group, at most
_SMALL_LEVEL = 25  # the same where a level of the usual size does not fit a page
_ROWS = (50, 25, 12)  # the longest row of modules, each in its turn where too little is drawn:
ENOUGH: Final = 20  # things


Step = Callable[[Drawing], Drawing]
_Verdict = Literal["draw", "show less", "next level"]

_FEW_JUMPS: Final = 4
# A drawing in one column is taken for one in several if it shows this share of its things; for one
# that parts a skip, if it shows this lower share, or so many.
_ROAD: Final = 0.6
_SKIP: Final = 0.4
_WHOLE: Final = 12
_LESS: Final = 0.9  # of the things of one drawing, what the next one shows


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
    scoped = drawing.graph.segments or in_modules(drawing.graph)
    if not (scoped or closing or options["module"]):
        if not (asked or _small(drawing)):
            yield Level(nodes, nodes, (most,), fold="loops", whole=True)
        yield Level(None, _LEVEL, (most,), fold=False)
        if asked:
            return
        fold, closing = fold is None, True
    elif fold is None:  # before a block is closed, those that are alike are drawn once
        loops: Fold = False if asked or _small(drawing) else "loops"
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


def _small(drawing: Drawing) -> bool:
    """Has it few operations?"""
    folded = drawing.inner.folded
    leaves = [node.id for node in drawing.graph.nodes if node.leaf and node.id not in folded]
    return _count(drawing) - len(leaves) <= _SMALL


def _most(drawing: Drawing) -> int:
    limit = drawing.options["limit"]
    return LIMITS[0] if limit is None else limit


def choose(start: Drawing, groups: Sequence[Step], level: Sequence[Step]) -> Drawing:
    """The drawing of a level.

    Args:
        groups: the steps for each level that is tried and groups the nodes anew.
        level: those for each limit of it.
    """
    trial = _Trial(start)
    known = set()
    absent: ValueError | None = None  # raised where no level has the module
    folded: Groups | None = None  # where blocks that are alike are drawn once
    for each in levels(start):
        if trial.passes(each):
            continue
        rows = each.rows if each.cut else None
        if rows is not None and folded is not None and _longest_row(folded) <= rows:
            continue  # it would cut no row, or one that is drawn once
        try:
            grouped = group_nodes(start.having(size=each.size, rows=each.rows, fold=each.fold))
        except ValueError as error:  # a run of operations is in the tree of its own level only
            absent = absent or error
            continue
        if grouped.modules is not start.modules:
            start = start.having(modules=grouped.modules)
        # Another size may cut nothing else.
        if each.fold is True:
            folded = folded or grouped.groups
        cut = grouped.groups and len(grouped.groups.groups), each.fold, each.whole
        if cut in known:
            continue
        known.add(cut)
        for drawing in _limited(taken(grouped, groups), each.limits, level, trial):
            verdict = trial.judge(drawing, each)
            if verdict == "draw":
                return drawing
            if verdict == "next level":
                break
    if absent is not None and not known:
        raise absent
    return trial.best


def _longest_row(tree: Groups) -> int:
    """The most things in a row of modules, those that are alike counted once; 0 for no such row."""
    groups = tree.groups
    rows = [(tree.roots, tree.nodes), *[(part.children, part.nodes) for part in groups]]
    return max(
        [
            len({groups[n].like for n in row}) + len(nodes)
            for row, nodes in rows
            if is_row(sum([groups[n].kind != "chain" for n in row]), len(row) + len(nodes))
        ],
        default=0,
    )


def taken(drawing: Drawing, steps: Sequence[Step]) -> Drawing:
    """The drawing after these steps."""
    for step in steps:
        drawing = step(drawing)
    return drawing


def _limited(
    grouped: Drawing, limits: Sequence[int], steps: Sequence[Step], trial: _Trial
) -> Iterator[Drawing]:
    """A level with ever fewer things: in small steps where only the road is cut.

    The first of the steps opens groups: what shows too little for any verdict is not drawn further.
    """
    shown = limits[0] + 1
    for limit in limits:
        while limit < shown:  # else there was room for more, and nothing to open
            tried = max(limit, int(_LESS * shown)) if trial.road else limit
            opened = steps[0](grouped.having(limit=tried))
            before, shown = shown, _shown(opened)
            if trial.too_little(shown):
                return
            yield taken(opened, steps[1:])
            if tried == limit or shown >= before:
                break


class _Trial:
    """What was tried so far."""

    def __init__(self, start: Drawing) -> None:
        self._last = start
        self._parted: Drawing | None = None  # it would be taken, but columns cut its road
        self.road = False  # is that all they cut, and no skip
        self._fewest = 0.0  # things that one in a single column must show to be taken for it
        self._enough: Drawing | None = None  # it fits and shows enough, with more jumps
        self._some: Drawing | None = None  # it fits, and shows too little
        self._most = 0  # things that this one shows

    @property
    def best(self) -> Drawing:
        """What is drawn, where nothing better follows."""
        return self._parted or self._enough or self._some or self._last

    def passes(self, level: Level) -> bool:
        """Is a level not worth trying: it cuts what is small, for what shows next to nothing."""
        if level.cut and self._enough is not None and self._parted is None:
            return True
        return self._most >= LIMITS[-1] and level.rows is None

    def too_little(self, shown: int) -> bool:
        """Would a drawing of so many things not be taken for the one that columns cut?"""
        return self._parted is not None and shown < self._fewest

    def judge(self, drawing: Drawing, level: Level) -> _Verdict:
        """What to do with a drawing."""
        self._last, shown = drawing, _shown(drawing)
        if self._parted is not None:  # what follows is drawn if it has a single column
            whole = drawing.columns.fits and len(drawing.columns.parts) < 2
            return "draw" if whole and (_in_modules(drawing) or not self.road) else "show less"
        told = _tells_all(drawing)
        if not drawing.columns.fits or (level.whole and not told):
            return "show less"
        # Little is enough where what shows more has many jumps, and a skip might be drawn whole.
        last = self._enough is not None and _parts_a_skip(drawing)
        if shown < ENOUGH and not told and not last:
            if shown > 2 * self._most:
                self._some, self._most = drawing, shown
            return "next level"
        if _jumps(drawing) > _FEW_JUMPS or (self._enough is not None and not _in_modules(drawing)):
            self._enough = self._enough or drawing
            return "show less"
        skip = _parts_a_skip(drawing)
        if (skip or _jumps(drawing)) and _has_modules(drawing):
            self._parted = drawing
            self.road = not skip
            # A single jump, of the result that goes on and is added to later, is easy to follow:
            # what is drawn for it shows this share and as many.
            bound = min if _jumps(drawing) > 1 else max
            self._fewest = bound(_WHOLE, _SKIP * shown) if skip else _ROAD * shown
            return "show less"
        return "draw"


def _shown(drawing: Drawing) -> int:
    return len(drawing.nodes) + len(drawing.boxes)


def _tells_all(drawing: Drawing) -> bool:
    """Is every node drawn, or told by the name of its chain?"""
    groups = drawing.groups.groups if drawing.groups else ()
    return all(groups[number].kind == "chain" for number in drawing.closed)


def _in_modules(drawing: Drawing) -> bool:
    """Do closed groups have names that mean something to a reader?"""
    groups = drawing.groups.groups if drawing.groups else ()
    return all(groups[number].kind != "run" for number in drawing.closed)


def _has_modules(drawing: Drawing) -> bool:
    """Were modules recorded? Else what is closed are runs, and a coarser drawing tells little."""
    return any(part.kind == "module" for part in (drawing.groups.groups if drawing.groups else ()))


def _jumps(drawing: Drawing) -> int:
    """How many results go on in another column, at a circle with a number."""
    columns = drawing.columns.parts
    if len(columns) < 2:
        return 0
    column = {key: at for at, part in enumerate(columns) for key in part}
    return len({source for source, target in drawing.ends if column[source] != column[target]})


def _parts_a_skip(drawing: Drawing) -> bool:
    """Does what joins two results read one of them from another column, and one from its own?"""
    columns = drawing.columns.parts
    if len(columns) < 2:
        return False
    column = {key: at for at, part in enumerate(columns) for key in part}
    far = {target for source, target in drawing.ends if column[source] != column[target]}
    return any(
        target in far and column[source] == column[target] for source, target in drawing.ends
    )
