"""Where each stream runs: the results of places in lanes beside each other, as branches of a log.

A place stands in a row of its own. Its result runs down a lane until its last user; the first user
stands in that lane, and what goes on beyond it moves aside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Course(NamedTuple):
    """A result: the lane that it has below each row, and the rows that use it."""

    source: int  # row
    lanes: dict[int, int]  # row -> the lane in which it passes that row
    uses: tuple[int, ...]  # rows


def courses(rows: int, links: Iterable[tuple[int, int]]) -> tuple[list[int], list[Course]]:
    """The lane of each row, and the course of each result that a later row uses.

    >>> courses(4, [(0, 1), (1, 2), (0, 2), (2, 3)])[0]  # what skips row 1 moves aside
    [0, 0, 0, 0]
    """
    uses: dict[int, list[int]] = defaultdict(list)
    for source, target in links:
        if source < target:
            uses[source].append(target)
    live: dict[int, int] = {}  # source -> lane
    made = {source: Course(source, {}, tuple(sorted(set(uses[source])))) for source in uses}
    places = []
    for row in range(rows):
        read = sorted(s for s in live if row in made[s].uses)
        ending = [s for s in read if made[s].uses[-1] == row]
        lane = min([live[s] for s in read], default=None)
        for source in ending:
            del live[source]
        if lane is None:
            lane = _free(live.values())
        for source, other in live.items():
            if other == lane:  # it goes on beyond this row
                live[source] = _free([*live.values(), lane], lane)
        places.append(lane)
        if uses.get(row):
            live[row] = lane
        for source, where in live.items():
            made[source].lanes[row] = where
    return places, [course for course in made.values() if course.uses]


def _free(taken: Iterable[int], above: int = -1) -> int:
    """The first lane that nothing runs in."""
    used = set(taken)
    lane = above + 1
    while lane in used:
        lane += 1
    return lane
