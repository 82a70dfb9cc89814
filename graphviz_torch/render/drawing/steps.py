"""The steps from a graph to a drawing, in their order. Writers of formats begin where they end.

Each step is a function from drawing to drawing, in the file of its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...graph import Graph
from ..groups.whole import findings_of
from ..options import DrawingOptions, complete
from ..page.columns import arrange
from .connect import connect
from .contents import count_contents, place_collectives
from .drawing import NOTHING, Drawing
from .fold import fold_repeats
from .frames import frame
from .group import group_nodes
from .inline import inline_parameters
from .level import ENOUGH, LIMITS, levels
from .mark import failed, mark
from .open import open_groups, weigh
from .shade import shade
from .shorten import shorten_edges
from .units import find_units

_FEW_JUMPS = 4
_WHOLE = 12  # things, of a drawing in one column that is taken for one which parts a skip
Step = Callable[[Drawing], Drawing]

BEFORE: Final[tuple[Step, ...]] = (inline_parameters,)
# For each level that is tried and groups the nodes anew, and for each limit of it.
GROUPS: Final[tuple[Step, ...]] = (fold_repeats, weigh, find_units)
LEVEL: Final[tuple[Step, ...]] = (open_groups, connect, frame, shorten_edges, arrange)
AFTER: Final[tuple[Step, ...]] = (count_contents, place_collectives, mark, shade)


def draw(graph: Graph, options: DrawingOptions) -> Drawing:
    """What to draw of a graph, and what to say of it.

    Raises:
        TypeError: for an unknown option.
        ValueError: for a value that an option does not take, or that the graph does not have.
    """
    checked = complete(options)
    if checked["color_by"] is None and any(n.influence is not None for n in graph.nodes):
        checked["color_by"] = "influence"
    findings = findings_of(graph, checked["findings"])
    findings = (*failed(graph, findings), *findings)
    start = NOTHING.having(graph=graph, options=checked, findings=findings)
    return _taken(_level(_taken(start, BEFORE)), AFTER)


def _level(start: Drawing) -> Drawing:
    """The first level that fits a page, shows enough and has few jumps.

    Where these part a skip from the road that it joins, as in the U of a U-Net, a coarser one in
    one column is taken, if there is one: there the skip is an arrow.
    Else of those that fit the first that shows enough, or the one that shows much more. The last
    one where none fits.
    """
    tried, best, most = start, None, 0
    enough: Drawing | None = None
    parted: Drawing | None = None
    known = set()
    for level in levels(start):
        if ((enough or parted) is not None and level.cut) or (
            most >= LIMITS[-1] and level.rows is None
        ):
            continue  # cutting everything small is for what shows next to nothing in another way
        grouped = group_nodes(start.having(size=level.size, rows=level.rows, fold=level.fold))
        # Another size may cut nothing else.
        cut = grouped.groups and len(grouped.groups.groups), level.fold, level.whole
        if cut in known:
            continue
        known.add(cut)
        grouped = _taken(grouped, GROUPS)
        shown = None
        for limit in level.limits:
            if shown is not None and limit >= shown:
                continue  # there was room for more, and nothing more to open
            tried = _taken(grouped.having(limit=limit), LEVEL)
            shown = len(tried.nodes) + len(tried.boxes)
            if parted is not None:
                if shown < _WHOLE:
                    break
                if tried.columns.fits and len(tried.columns.parts) < 2:
                    return tried
                continue
            told = _tells_all(tried)
            if not tried.columns.fits or (level.whole and not told):
                continue
            if shown >= ENOUGH or told:
                if _jumps(tried) <= _FEW_JUMPS and (enough is None or _in_modules(tried)):
                    if not _parts_a_skip(tried):
                        return tried
                    parted = tried
                    continue
                enough = enough or tried
            elif shown > 2 * most:
                best, most = tried, shown
                break
            else:
                break
    return parted or enough or best or tried


def _tells_all(drawing: Drawing) -> bool:
    """Is every node drawn, or told by the name of its chain?"""
    groups = drawing.groups.groups if drawing.groups else ()
    return all(groups[number].kind == "chain" for number in drawing.closed)


def _in_modules(drawing: Drawing) -> bool:
    """Do closed groups have names that mean something to a reader?"""
    groups = drawing.groups.groups if drawing.groups else ()
    return all(groups[number].kind != "run" for number in drawing.closed)


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


def _taken(drawing: Drawing, steps: tuple[Step, ...]) -> Drawing:
    for step in steps:
        drawing = step(drawing)
    return drawing
