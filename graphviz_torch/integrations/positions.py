"""Describe in a sentence where the ranks of a hanging program wait for each other.

Ranks that wait in the same collective are named together. For each other rank, the sentence says
where this rank is, and which collectives it called more or less often than the waiting ranks. The
ranks diverged at these calls, which may be far from the lines at which they wait.

Point-to-point messages are not compared, because they may differ between ranks. Collectives of a
group are compared only between ranks of this group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..graph import CollectiveCalls, RankPosition
from ..graph.text import first_items, ranks_text
from ..graph.units import count_text

_MESSAGES = ("send", "recv")
_PLURALS = {"is in": "are in", "has ": "have ", "makes progress": "make progress"}
_MAX_CLAUSES = 6  # maximum number of clauses in the sentence
_MAX_CALLS = 2  # maximum number of calls mentioned in a clause

# Rank -> its position; None if the rank makes progress.
Positions = Mapping[int, RankPosition | None]
# (call, number of such calls by a rank minus the number by the reference rank)
_Difference = tuple[CollectiveCalls, int]


def stall_text(positions: Positions) -> str:
    """Return a sentence that says where ranks wait, and where the other ranks are.

    Return "" if no rank waits for another rank.
    """
    at = {rank: each for rank, each in positions.items() if each is not None}
    if not at:
        return ""
    first = _reference(at)
    waits = at[first].state in ("inside", "raised")
    if not waits and not _uneven(at):
        return ""
    clauses: dict[str, list[int]] = {}
    for rank, each in positions.items():
        message = "makes progress" if each is None else _clause(rank, first, at)
        clauses.setdefault(message, []).append(rank)
    own = clauses.pop(_clause(first, first, at))
    if not clauses and not waits:
        return ""
    verb = ("waits" if len(own) == 1 else "wait") if waits else "last began"
    text = f"{ranks_text(own)} {verb}{' in' if waits else ''} {_last_call(at[first])}"
    parts = [f"{ranks_text(ranks)} {_plural(message, ranks)}" for message, ranks in clauses.items()]
    return "; ".join([text, *first_items(parts, _MAX_CLAUSES, "and {:,} more kinds")])


def _reference(at: Mapping[int, RankPosition]) -> int:
    """Return the rank with which the other ranks are compared.

    Ranks that wait in a collective are preferred. If ranks wait in several collectives, the result
    is a rank in the collective in which most ranks wait.
    """

    def worth(each: RankPosition) -> int:
        if each.last is None:
            return 0
        return {"inside": 3, "raised": 3, "outside": 2, "ended": 1}[each.state]

    fronts = Counter((worth(each), _last_call(each), _times(each)) for each in at.values())
    best = max(fronts, key=lambda front: (front[0], fronts[front]))
    return next(
        r for r, each in at.items() if (worth(each), _last_call(each), _times(each)) == best
    )


def _uneven(at: Mapping[int, RankPosition]) -> bool:
    """Return whether the ranks of a process group have begun different numbers of collectives."""
    totals: dict[tuple[int, ...], dict[int, int]] = {}
    for rank, each in at.items():
        for call in each.calls:
            if call.kind not in _MESSAGES:
                by_rank = totals.setdefault(call.ranks, {})
                by_rank[rank] = by_rank.get(rank, 0) + call.times
    return any(
        len({by_rank.get(rank, 0) for rank in at if rank in ranks}) > 1
        for ranks, by_rank in totals.items()
    )


def _clause(rank: int, reference: int, at: Mapping[int, RankPosition]) -> str:
    """Return a clause about the position of `rank`, and about its additional or missing calls.

    The number of calls is compared with that of the rank `reference`.

    Args:
        rank: the rank.
        reference: the rank to compare with.
        at: rank -> position.
    """
    each = at[rank]
    last = _last_call(each)
    if each.state == "ended":
        message = f"has ended with {each.error}" if each.error else "has ended"
        message += f" after {last}" if last else ""
    elif each.state == "outside":
        # The rank has left the Python call, but C++ code may still wait in the collective.
        message = f"last began {last}" if last else "has begun no collective"
    else:
        message = f"is in {last}"
    for call, more in _differences(rank, reference, at)[:_MAX_CALLS]:
        often = f"{count_text(abs(more), 'time')} {'more' if more > 0 else 'fewer'}"
        own = each.last is not None and call.text == last
        message += f", called {often}" if own else f", and called {call.text} {often}"
    return message


def _differences(rank: int, reference: int, at: Mapping[int, RankPosition]) -> list[_Difference]:
    """Return the calls that `rank` made more or less often than `reference`, last call first.

    Args:
        rank, reference: two ranks.
        at: position of each rank.
    """
    each, other = at[rank], at[reference]
    mine, theirs = _counts(each), _counts(other)
    found = []
    for key, call in (theirs | mine).items() if mine else ():
        more = (mine[key].times if key in mine else 0) - (theirs[key].times if key in theirs else 0)
        # The sentence names the collective in which the reference rank waits, so a clause need not
        # say that `rank` has called it once less.
        waits = other.state in ("inside", "raised")
        implied = waits and more == -1 and call.text == _last_call(other) != _last_call(each)
        if more and {rank, reference} <= {*call.ranks} and not implied:
            found.append((call, more))
    return sorted(found, key=lambda pair: pair[0].text != _last_call(each))


def _plural(message: str, ranks: list[int]) -> str:
    for one, many in _PLURALS.items():
        if len(ranks) > 1 and message.startswith(one):
            return many + message.removeprefix(one)
    return message


def _counts(each: RankPosition) -> dict[tuple[object, ...], CollectiveCalls]:
    return {_key(call): call for call in each.calls if call.kind not in _MESSAGES}


def _key(call: CollectiveCalls) -> tuple[object, ...]:
    return call.kind, call.ranks, call.where


def _last_call(each: RankPosition) -> str:
    return "" if each.last is None else each.calls[each.last].text


def _times(each: RankPosition) -> int:
    return 0 if each.last is None else each.calls[each.last].times
