"""The step that puts a drawing in rows and columns, so that it fits a page.

The flow of a tall piece goes on at the top of the next column. Pieces that no edge joins, such as
the losses of a step, stand beside each other, and in rows where one is too wide: as they follow
each other, from left to right and from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import ceil, inf
from operator import invert
from typing import Final

from ..drawing.drawing import Columns, Drawing
from ..drawing.level import paged
from .flow import BELOW, FRAME_BOTTOM, FRAME_TOP, RANKS, Flow, flow_of, measure, pieces_of

# A page in points. What is drawn stays within 2,400 and 1 : 4; an estimate can be a sixth too low.
MOST_HIGH: Final = 2050.0
MOST_WIDE: Final = 2100.0
_SLIM = 3.3  # times as high as wide, at most
_LEGEND = 350.0  # the width of the legend: nothing is narrower
_COLUMNS = 5  # of one piece
_OVER = 0.2  # so much of a column may be added to others, in place of one more
_FEW = 8  # things that fit a page however they stand


def arrange(drawing: Drawing) -> Drawing:
    """The drawing in as few columns and rows as make it fit a page; else as near as it comes.

    One whose data flows sideways has one column, and so has one of a few things that are joined.
    """
    keys = [*drawing.nodes, *map(invert, drawing.boxes)]
    if not paged(drawing) or (len(keys) <= _FEW and len(pieces_of(drawing, keys)) < 2):
        return drawing.having(columns=Columns((tuple(keys),), (None,)))
    flow = flow_of(drawing)
    found: list[Columns] = []
    for cuts in _divisions(flow):
        for columns in _in_rows(flow, cuts):
            if columns.fits:
                return drawing.having(columns=columns)
            found.append(columns)
    best = min(found, key=lambda c: max(c.height / MOST_HIGH, c.width / MOST_WIDE))
    return drawing.having(columns=best)


def _fits(width: float, height: float) -> bool:
    """Is a drawing of this size within a page?"""
    slim = height <= _SLIM * max(width, _LEGEND)
    return slim and width <= 4 * height and width <= MOST_WIDE and height <= MOST_HIGH


def _divisions(flow: Flow) -> Iterator[list[list[int]]]:
    """Where to cut each piece into columns: not at all, then into more and more."""
    pieces = [*pairwise([*flow.pieces, len(flow.keys)])]
    yield [[*piece] for piece in pieces]
    heights = [measure(flow, piece).height for piece in pieces]
    tallest = max(heights)
    fewest = max(2, min(int(tallest / MOST_HIGH), _COLUMNS - 1))
    for count in range(fewest, _COLUMNS + 1):
        yield [
            _divide(flow, *piece, height / max(1, ceil(count * height / tallest - _OVER)))
            for piece, height in zip(pieces, heights, strict=True)
        ]


def _in_rows(flow: Flow, pieces: list[list[int]]) -> Iterator[Columns]:
    """The columns in more and more rows, until these are too high.

    Args:
        pieces: where the columns of each piece begin, and the last of them ends.
    """
    alone = [measure(flow, cuts) for cuts in pieces]
    widths = [max(one.width, title) for one, title in zip(alone, flow.titles, strict=True)]
    fewest = min(max(1, int(sum(widths) / MOST_WIDE)), len(pieces))
    for count in range(fewest, len(pieces) + 1):
        starts = [*_rows(widths, count), len(pieces)]
        rows = [
            [pieces[begin][0], *[cut for cuts in pieces[begin:end] for cut in cuts[1:]]]
            for begin, end in pairwise(starts)
        ]
        extents = alone if len(rows) == len(pieces) else [measure(flow, cuts) for cuts in rows]
        width = max([sum(widths[begin:end]) for begin, end in pairwise(starts)])
        height = sum([extent.height - BELOW + RANKS for extent in extents]) + BELOW - RANKS
        columns = [ends for cuts in rows for ends in pairwise(cuts)]
        yield Columns(
            tuple([tuple(flow.keys[begin:end]) for begin, end in columns]),
            tuple([key for extent in extents for key in extent.beside]),
            tuple([at for at, (begin, _) in enumerate(columns) if begin in flow.pieces]),
            tuple(accumulate([len(cuts) - 1 for cuts in rows[:-1]], initial=0)),
            tuple([extent.end for extent in extents]),
            width,
            height,
            _fits(width, height),
        )
        if height > MOST_HIGH and height / MOST_HIGH > width / MOST_WIDE:
            return


def _rows(widths: list[float], count: int) -> list[int]:
    """Where each row begins, of at most so many that are as narrow as can be."""
    low, high = max(widths), sum(widths)
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_filled(widths, middle)) <= count else (middle, high)
    return _filled(widths, high)


def _filled(widths: list[float], width: float) -> list[int]:
    """Where each row begins, where a row takes as many as are not wider than this."""
    starts, used = [0], 0.0
    for i, wide in enumerate(widths):
        used += wide
        if used > width and i > starts[-1]:
            starts.append(i)
            used = wide
    return starts


def _divide(flow: Flow, begin: int, end: int, aim: float) -> list[int]:
    """Where to cut into parts of about `aim` height: where the fewest frames and edges are.

    Args:
        begin, end: the places between which all is put in columns.
    """
    heights, sources, cutting = flow.heights, flow.sources, flow.cutting
    bottom = [0.0] * end
    cuts = [begin]
    while cuts[-1] < end:
        start = cuts[-1]
        best, cheapest = 0, inf
        reached = 0.0
        for place in range(start, end):
            top = 0.0
            for source, opened, closed, *_ in sources[place]:
                if start <= source < place:
                    frames = opened * FRAME_TOP + closed * FRAME_BOTTOM
                    top = max(top, bottom[source] + RANKS + frames)
            bottom[place] = top + heights[place]
            reached = max(reached, bottom[place])
            if reached > 1.25 * aim and best:
                break
            if reached > 0.6 * aim and place + 1 < end:
                cost = abs(reached - aim) + cutting[place + 1]
                if cost < cheapest:
                    best, cheapest = place + 1, cost
        else:
            best = end
        cuts.append(best)
    return cuts
