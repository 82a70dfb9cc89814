"""Routes of links: results run in parallel lanes, as branches in a log of commits.

Each node has a row of its own. Its result runs down a lane to its last user; its first user is in
that lane, and the rest of the route moves to another lane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Track(NamedTuple):
    """The route of a result: its lane at each row, and the rows that use it."""

    source: int  # row
    lanes: dict[int, int]  # row -> lane at that row
    uses: tuple[int, ...]  # rows that use the result


def tracks(rows: int, links: Iterable[tuple[int, int]]) -> tuple[list[int], list[Track]]:
    """Return the lane of each row, and the track of each result that a later row uses.

    >>> tracks(4, [(0, 1), (1, 2), (0, 2), (2, 3)])[0]  # the link past row 1 moves aside
    [0, 0, 0, 0]
    """
    uses: dict[int, list[int]] = defaultdict(list)
    for source, target in links:
        if source < target:
            uses[source].append(target)
    live: dict[int, int] = {}  # source -> lane
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
            if other == lane:  # the result has users below this row
                live[source] = _free([*live.values(), lane], lane)
        places.append(lane)
        if uses.get(row):
            live[row] = lane
        for source, where in live.items():
            made[source].lanes[row] = where
    return places, [track for track in made.values() if track.uses]


def _free(taken: Iterable[int], above: int = -1) -> int:
    """Return the first free lane to the right of `above`."""
    used = set(taken)
    lane = above + 1
    while lane in used:
        lane += 1
    return lane
