"""Define collectives between ranks as plain values, and compute how long ranks waited in them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Literal

from .ids import NodeId
from .immutable import NamedTuple, immutable
from .text import short_repr
from .units import bytes_text

CollectiveKind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
]
CollectivePhase = Literal["forward", "backward", "optimizer", "other"]
RankState = Literal["outside", "inside", "raised", "ended"]
_MESSAGES = ("send", "recv")


class RankTime(NamedTuple):
    """The time that one rank spent in a collective, in seconds on that rank's CPU clock.

    A rank is in a collective during the call that starts the collective, and while the rank waits
    for the result. Only the start is known if no CPU code waits for the result.
    """

    rank: int  # global rank
    group: str  # name of the process group, equal on all its ranks
    begin: float  # time of the call, counted from the start of the rank's recording
    seconds: float | None = None  # time from the call until the result was available
    standing: float | None = None  # time within `seconds` in which the rank was blocked


@immutable
class Collective:
    """A collective operation as one rank recorded it: it moves data between ranks.

    `nbytes` is the size of this rank's input tensors. A rank that only receives (`broadcast` and
    `scatter` from another rank, `recv`) counts its output. The bytes on the wire differ: in a ring
    of n ranks each rank sends 2 (n - 1) / n times `nbytes` for an all_reduce, n - 1 times for an
    all_gather, and (n - 1) / n times for a reduce_scatter or all_to_all (Thakur, Rabenseifner and
    Gropp 2005).

    >>> str(Collective("all_gather", 4096, "bfloat16", 8, group="dp"))
    'all_gather 4.0 KiB bfloat16 · dp, 8 ranks'
    """

    kind: CollectiveKind
    nbytes: int
    dtype: str = ""
    group_size: int = 1  # number of ranks in the group
    group: str = ""  # mesh dimension, or "ranks 1 and 3"; "" if all ranks take part
    phase: CollectivePhase = "other"
    node: NodeId | None = None  # id of the node that caused the collective
    module: str = ""
    where: str = ""  # source line: "train.py:41", or "models.py:7, called at train.py:41"
    parameters: tuple[str, ...] = ()  # names of parameters whose values or gradients were sent
    asynchronous: bool | None = None  # True if the call returned before the collective was done
    waited_where: str = ""  # source line that waited for the result
    peer: int | None = None  # global rank of the source, destination or root
    change: str = ""  # change of a DTensor's placements: "Shard(0) -> Replicate"
    gradients: bool | None = None  # True if gradients of `parameters` were sent, False if values
    # True if the backward pass of this graph caused the collective. Each graph of a step lists all
    # collectives of the step.
    own: bool = False
    # Times on each rank that recorded the collective. They are ignored by `==`.
    times: tuple[RankTime, ...] = field(default=(), compare=False)

    __repr__ = short_repr

    def __str__(self) -> str:
        size = f" {bytes_text(self.nbytes)} {self.dtype}" if self.kind != "barrier" else ""
        name = f"{self.group}, " if self.group else ""
        return f"{self.kind}{size} · {name}{self.group_size} ranks"


def by_node(collectives: Iterable[Collective]) -> dict[int, list[Collective]]:
    """Return node id -> the collectives that send the node's result or its gradient.

    Collectives that send parameters are left out. Hooks of FSDP and DDP start such collectives
    while backward is at an unrelated node, so these collectives belong to the parameters' module.
    """
    found: dict[int, list[Collective]] = {}
    for each in collectives:
        if each.node is not None and not each.parameters:
            found.setdefault(each.node, []).append(each)
    return found


def with_times(copies: Sequence[Collective]) -> Collective:
    """Merge several ranks' records of the same collective into one, with the time on each rank.

    If the ranks recorded different values of `peer`, it becomes None.
    """
    times = {time.rank: time for each in copies for time in each.times}
    peer = copies[0].peer if len({each.peer for each in copies}) == 1 else None
    return replace(copies[0], times=tuple(times.values()), peer=peer)


class RankWait(NamedTuple):
    """The ranks that waited in a collective for the rank that started it last."""

    collective: Collective  # record of the collective by the first waiting rank
    late: int  # the rank that started the collective last
    # (waiting rank, seconds that it waited for `late`, or more)
    seconds: tuple[tuple[int, float], ...]


def rank_rounds(
    collectives: Iterable[Collective],
) -> Iterator[list[tuple[Collective, RankTime]]]:
    """Yield, for each collective that several ranks ran, the (record, time) of every rank.

    All ranks of a group run its collectives in the same order, so the n-th records of all ranks
    belong together. So do the `send` and the `recv` of a message.
    """
    rounds: dict[tuple[str, int, int, int], list[tuple[Collective, RankTime]]] = {}
    calls: Counter[tuple[int, tuple[str, int, int]]] = Counter()
    for each in collectives:
        for time in each.times:
            key = (time.group, *_ends(each, time.rank))
            number = calls[time.rank, key]
            calls[time.rank, key] += 1
            rounds.setdefault((*key, number), []).append((each, time))
    for some in rounds.values():
        if {each.kind for each, _ in some} == {"send", "recv"} or _is_one_kind(some):
            yield some


def _ends(collective: Collective, rank: int) -> tuple[int, int]:
    """Return the (sender, receiver) of a message, or (-1, -1) for a collective of a whole group."""
    if collective.kind not in _MESSAGES or collective.peer is None:
        return -1, -1
    return (rank, collective.peer) if collective.kind == "send" else (collective.peer, rank)


def _is_one_kind(some: Sequence[tuple[Collective, RankTime]]) -> bool:
    kinds = {each.kind for each, _ in some}
    return len(kinds) == 1 and kinds.isdisjoint(_MESSAGES)


def rank_waits(collectives: Iterable[Collective]) -> Iterator[RankWait]:
    """Yield, in program order, the collectives in which ranks waited for a late rank.

    Ranks share no clock, so only durations are compared. The rank with the shortest time from call
    to result started last, and the collective itself takes at most that time. Any longer time on
    another rank was spent waiting.

    >>> early, late = RankTime(0, "dp", 1.0, 3.5, 3.5), RankTime(1, "dp", 4.0, 0.5, 0.5)
    >>> [wait] = rank_waits([Collective("all_reduce", 8, "float32", 2, times=(early, late))])
    >>> wait.late, wait.seconds
    (1, ((0, 3.0),))
    """
    for some in rank_rounds(collectives):
        known = [(time.seconds, time) for _, time in some if time.seconds is not None]
        if len(known) < max(2, len(some)):
            continue
        least, late = min(known)
        waits = [(t.rank, (t.standing or 0.0) - least) for _, t in known if t is not late]
        longer = tuple((rank, seconds) for rank, seconds in waits if seconds > 0)
        if longer:
            waiting = next(each for each, t in some if t.rank == longer[0][0])
            yield RankWait(waiting, late.rank, longer)


def align_times(
    collectives: Sequence[Collective],
) -> dict[int, list[tuple[float, float, Collective]]]:
    """Return rank -> list of (start, duration, collective), in seconds on a common time axis.

    Time 0 is the start of the first rank's recording.
    """
    shifts = _shifts(collectives)
    bars: dict[int, list[tuple[float, float, Collective]]] = defaultdict(list)
    for each in collectives:
        for time in each.times:
            shift = shifts.get(time.rank, 0.0)
            begin, long = _span(time)
            bars[time.rank].append((begin + shift, long, each))
    return bars


def _span(time: RankTime) -> tuple[float, float]:
    """Return the (start, duration) of the time in which a rank was blocked in a collective.

    The rank is assumed to have been blocked until the result was available.
    """
    standing, seconds = time.standing or 0.0, time.seconds
    begin = time.begin if seconds is None else time.begin + max(0.0, seconds - standing)
    return begin, standing


def _shifts(collectives: Sequence[Collective]) -> dict[int, float]:
    """Return rank -> seconds to add to its times, so that shared collectives end simultaneously."""
    shifts: dict[int, float] = {}
    shared = [each for each in collectives if each.kind not in _MESSAGES]
    rounds = [[t for _, t in some if t.seconds is not None] for some in rank_rounds(shared)]
    growing = True
    while growing:  # repeat until no further rank shares a collective with an aligned rank
        growing = False
        for some in rounds:
            known = [time for time in some if time.rank in shifts] or some[:1]
            stood = all((t.standing or 0.0) > 0.5 * (t.seconds or 0.0) for t in some)
            if len(some) < 2 or not stood or (shifts and known[0].rank not in shifts):
                continue
            end = _end(known[0]) + shifts.setdefault(known[0].rank, 0.0)
            for time in some:
                if time.rank not in shifts:
                    shifts[time.rank] = end - _end(time)
                    growing = True
    return shifts


def _end(time: RankTime) -> float:
    return time.begin + (time.seconds or 0.0)


@immutable
class CollectiveCalls:
    """A collective of one kind, group and source line, and how often a rank has started it.

    >>> CollectiveCalls("all_reduce", where="train.py:91", times=12).text
    'all_reduce at train.py:91'
    """

    kind: CollectiveKind
    group: str = ""  # mesh dimension, if any
    ranks: tuple[int, ...] = ()  # ranks of the group
    where: str = ""  # source line in the user's code
    times: int = 1

    @property
    def text(self) -> str:
        """Text with the kind, group and line of the collective."""
        said = f"{self.kind} of {self.group}" if self.group else self.kind
        return f"{said} at {self.where}" if self.where else said


@immutable
class RankPosition:
    """The last collective that a rank started, and whether the rank is still in that collective.

    `state` is "inside" while Python code runs the collective or waits for its result, and "raised"
    after an error in the collective. The state is "outside" if only C++ code or a GPU waits.
    """

    calls: tuple[CollectiveCalls, ...] = ()  # in order of the first call
    # index in `calls` of the collective that the rank waits for, or else started last
    last: int | None = None
    state: RankState = "outside"
    error: str = ""  # class of the exception that ended the rank's program

    def check(self) -> None:
        """Raise ValueError if `last` is not a valid index into `calls`."""
        if self.last is not None and not 0 <= self.last < len(self.calls):
            raise ValueError(f"last={self.last} is not a valid index into {len(self.calls)} calls.")
