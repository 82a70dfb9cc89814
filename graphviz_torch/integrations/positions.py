"""Where the ranks of a program wait for each other, as a sentence.

Ranks that wait for the same are named together. Of the others it says where they are, and what they
have called more often or less often than those who wait: the line at which the ranks went apart,
which may lie long before the line at which they wait.

Not compared: messages from one rank to another, which need not be alike, and lines of groups to
which a rank does not belong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..graph import CollectiveCalls, RankPosition
from ..graph.text import at_most, ranks_text
from ..graph.units import count_text

_MESSAGES = ("send", "recv")
_PLURALS = {"is in": "are in", "has ": "have ", "goes on": "go on"}
_CLAUSES = 6  # in a sentence
_MOST_CALLS = 2  # that a clause tells of

# Position of a rank; None: it goes on.
Positions = Mapping[int, RankPosition | None]
_Difference = tuple[CollectiveCalls, int]  # a call, and how many times more it was made


def stall_text(positions: Positions) -> str:
    """Who waits where, and what is different at the others; "" where nobody waits for another.

    >>> all = 0, 1, 2
    >>> gather = CollectiveCalls("all_gather", "", all, "train.py:88", times=3)
    >>> reduce = CollectiveCalls("all_reduce", "", all, "train.py:91")
    >>> waits = RankPosition((gather, reduce), 1, "inside")
    >>> more = RankPosition((CollectiveCalls("all_gather", "", all, "train.py:88", times=4),), 0)
    >>> print(stall_text({0: waits, 1: waits, 2: more}))
    ranks 0 and 1 wait in all_reduce at train.py:91; rank 2 last began all_gather at \
train.py:88, called 1 time more
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
        said = "goes on" if each is None else _clause(rank, first, at)
        clauses.setdefault(said, []).append(rank)
    own = clauses.pop(_clause(first, first, at))
    if not clauses and not waits:
        return ""
    verb = ("waits" if len(own) == 1 else "wait") if waits else "last began"
    text = f"{ranks_text(own)} {verb}{' in' if waits else ''} {_last(at[first])}"
    parts = [f"{ranks_text(ranks)} {_plural(said, ranks)}" for said, ranks in clauses.items()]
    return "; ".join([text, *at_most(parts, _CLAUSES, "and {:,} more kinds")])


def _reference(at: Mapping[int, RankPosition]) -> int:
    """One of the ranks that most are with: that wait, else that go on."""

    def worth(each: RankPosition) -> int:
        if each.last is None:
            return 0
        return {"inside": 3, "raised": 3, "outside": 2, "ended": 1}[each.state]

    fronts = Counter((worth(each), _last(each), _times(each)) for each in at.values())
    best = max(fronts, key=lambda front: (front[0], fronts[front]))
    return next(r for r, each in at.items() if (worth(each), _last(each), _times(each)) == best)


def _uneven(at: Mapping[int, RankPosition]) -> bool:
    """Has a rank begun more collectives in some group than another rank that belongs to it."""
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
    """Where a rank is, and what it has called more or less often than another."""
    each = at[rank]
    last = _last(each)
    if each.state == "ended":
        said = f"has ended with {each.error}" if each.error else "has ended"
        said += f" after {last}" if last else ""
    elif each.state == "outside":
        said = f"last began {last}" if last else "has begun no collective"  # C++ may wait there
    else:
        said = f"is in {last}"
    for call, more in _differences(rank, reference, at)[:_MOST_CALLS]:
        often = f"{count_text(abs(more), 'time')} {'more' if more > 0 else 'fewer'}"
        own = each.last is not None and call.text == last
        said += f", called {often}" if own else f", and called {call.text} {often}"
    return said


def _differences(rank: int, reference: int, at: Mapping[int, RankPosition]) -> list[_Difference]:
    """What a rank has called more often than another, and less often; its own line comes first."""
    each, other = at[rank], at[reference]
    mine, theirs = _counts(each), _counts(other)
    found = []
    for key, call in (theirs | mine).items() if mine else ():
        more = (mine[key].times if key in mine else 0) - (theirs[key].times if key in theirs else 0)
        # That a rank has not come to where the other waits is said already.
        waits = other.state in ("inside", "raised")
        implied = waits and more == -1 and call.text == _last(other) != _last(each)
        if more and {rank, reference} <= {*call.ranks} and not implied:
            found.append((call, more))
    return sorted(found, key=lambda pair: pair[0].text != _last(each))


def _plural(said: str, ranks: list[int]) -> str:
    for one, many in _PLURALS.items():
        if len(ranks) > 1 and said.startswith(one):
            return many + said.removeprefix(one)
    return said


def _counts(each: RankPosition) -> dict[tuple[object, ...], CollectiveCalls]:
    return {_key(call): call for call in each.calls if call.kind not in _MESSAGES}


def _key(call: CollectiveCalls) -> tuple[object, ...]:
    return call.kind, call.ranks, call.where


def _last(each: RankPosition) -> str:
    return "" if each.last is None else each.calls[each.last].text


def _times(each: RankPosition) -> int:
    return 0 if each.last is None else each.calls[each.last].times
