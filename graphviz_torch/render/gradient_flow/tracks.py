"""Choose the routes of links, which run in parallel vertical lanes, as in `git log --graph`.

Each node has its own row. The link of a node's result runs down in a lane to the last user of the
result. If there are several users, the first user is in this lane, and the link continues below the
first user in another lane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Track(NamedTuple):
    """The route of a result's link: its lane at each row, and the rows that use the result."""

    source: int  # row of the node that computes the result
    lanes: dict[int, int]  # row -> lane of the link at that row
    uses: tuple[int, ...]  # rows that use the result


def tracks(rows: int, links: Iterable[tuple[int, int]]) -> tuple[list[int], list[Track]]:
    """Return the lane of each row, and the track of each result that a later row uses.

    Args:
        rows: number of rows.
        links: (row of the source, row of the user) of each link.

    >>> tracks(4, [(0, 1), (1, 2), (0, 2), (2, 3)])[0]
    [0, 0, 0, 0]
    """
    uses: dict[int, list[int]] = defaultdict(list)
    for source, target in links:
        if source < target:
            uses[source].append(target)
    live: dict[int, int] = {}  # row of the source -> current lane of the link
    made = {source: Track(source, {}, tuple(sorted(set(uses[source])))) for source in uses}
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
            if other == lane:  # the link passes this row, and continues to a later user
                live[source] = _free([*live.values(), lane], lane)
        places.append(lane)
        if uses.get(row):
            live[row] = lane
        for source, where in live.items():
            made[source].lanes[row] = where
    return places, [track for track in made.values() if track.uses]


def _free(taken: Iterable[int], above: int = -1) -> int:
    """Return the first lane to the right of lane `above` that is not in `taken`."""
    used = set(taken)
    lane = above + 1
    while lane in used:
        lane += 1
    return lane
