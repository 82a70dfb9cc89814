"""Detect ranks that wait for each other, and print a message while they wait.

Each rank counts its collectives, and a thread checks twice a second whether the count has changed.
If it has not changed, the thread writes this rank's position to torchrun's store, and removes the
position when the count changes again. A rank that makes progress writes nothing.

After some seconds without progress, a rank reads the positions of all ranks. The first rank that
finds a difference prints a message.

The thread also runs while the main thread waits in C++, because PyTorch releases the GIL there. No
signal handler is needed: the message is printed while the ranks still wait.

In the message, ranks that wait in the same collective are named together. For each other rank, the
message says where this rank is, and which collectives it called more or less often than the waiting
ranks. The ranks diverged at these calls, which may be far from the lines at which they wait.

Point-to-point messages are not compared, because they may differ between ranks. Collectives of a
group are compared only between ranks of this group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Event, Thread
from time import monotonic, sleep

from ..distributed import CollectiveCounter
from ..graph import CollectiveCalls, RankPosition
from ..graph.text import first_items, ranks_text
from ..graph.units import count_text
from .ranks import Ranks

STALL_SECONDS = 10.0  # after this time without progress, a rank reads the others' positions
_POLL_SECONDS = 0.5
# Rank n reads the positions n polls later than rank 0, but at most this many polls later. Therefore
# usually only one rank reads them.
_MAX_DELAYS = 20


class StallWatch:
    """A thread that detects, until `close()`, whether this rank and others wait for each other.

    Args:
        ranks: the connection to the other ranks.
        say: called with each message for the user.
    """

    def __init__(self, ranks: Ranks, say: Callable[[str], object]) -> None:
        self._ranks, self._say = ranks, say
        self._counter = CollectiveCounter()
        self._moves = -1  # number of collectives at the last poll
        self._since = 0.0  # time when this number last changed
        self._due = 0.0  # seconds without progress after which the others' positions are read
        self._published = False  # whether this rank's position is in the store
        # Number of messages that all ranks had printed when this rank stalled.
        self._announcements = 0
        self._over = Event()
        self._thread = Thread(target=self._poll, name="graphviz-torch", daemon=True)
        self._counter.__enter__()
        self._thread.start()

    def close(self, error: BaseException | None = None) -> None:
        """Stop watching at the end of the script. If a collective failed, print which ranks wait.

        Args:
            error: the exception that ended the script, or None.
        """
        self._counter.__exit__()
        self._over.set()
        self._thread.join(
            2 * _POLL_SECONDS
        )  # with a timeout: the thread may be waiting for the store
        with suppress(Exception):
            at = self._counter.position()
            if at.state == "raised":
                if not self._published:
                    self._announcements = self._ranks.announcements()
                self._ranks.publish(at)
                self._await_positions()
                self._announce("")
            else:
                name = "" if error is None else type(error).__name__
                self._ranks.publish(replace(at, state="ended", error=name))

    def _poll(self) -> None:
        with suppress(Exception):  # raised if torchrun, and its store, have ended
            while not self._over.wait(_POLL_SECONDS):
                self._check_progress(monotonic())

    def _check_progress(self, now: float) -> None:
        """Check whether the number of collectives has changed since the last call of this method.

        If it has not changed, this rank's position is published and, later, a message is printed.

        Args:
            now: the time in seconds, from `monotonic()`.
        """
        if self._counter.moves != self._moves:
            self._moves, self._since = self._counter.moves, now
            self._due = STALL_SECONDS + min(self._ranks.rank, _MAX_DELAYS) * _POLL_SECONDS
            if self._published:
                self._ranks.publish(None)
                self._published = False
        elif not self._published:
            self._announcements = self._ranks.announcements()
            self._ranks.publish(self._counter.position())
            self._published = True
        elif now - self._since >= self._due:
            self._due *= 2
            self._announce(f"for {count_text(round(now - self._since), 'second')} ")

    def _announce(self, since: str) -> None:
        """Print which ranks wait, unless another rank has printed this after this rank stalled.

        Args:
            since: how long this rank has made no progress, as text.
        """
        if self._ranks.announcements() > self._announcements:
            return
        text = stall_text(self._ranks.positions())
        if text and self._ranks.announcements(1) == self._announcements + 1:
            self._say(f"{since}{text}")

    def _await_positions(self) -> None:
        """Wait, for at most 2 seconds, until all stalled ranks have published their positions."""
        end = monotonic() + 4 * _POLL_SECONDS
        while monotonic() < end:
            positions = self._ranks.positions()
            if len(positions) == self._ranks.size and None not in positions.values():
                break
            sleep(_POLL_SECONDS / 5)


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
