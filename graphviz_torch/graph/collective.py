"""What ranks sent to each other: one collective, as a plain value."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from .ids import NodeId
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
    """When a rank was in a collective, in seconds by the clock of its own processor.

    A rank stands in a collective while it is in the call that begins it, and while it waits for the
    result. Of a collective that nobody waits for on the processor only the beginning is known.
    """

    rank: int  # among all
    group: str  # the name by which all its ranks know the process group
    begin: float  # after that rank's recording began
    seconds: float | None = None  # until it had the result
    standing: float | None = None  # of these, how long it stood in it


@dataclass(frozen=True, slots=True)
class Collective:
    """What this rank gave to the ranks of a group, or took from them: to a Transfer what a group is
    to a device.

    `nbytes` is what this rank gives in: the elements of its input tensors. A rank that only takes
    (`broadcast` and `scatter` from another rank, `recv`) counts what it takes. On the wire more or
    less may go. In a ring of n ranks each rank sends 2 (n - 1) / n times that for an all_reduce,
    n - 1 times for an all_gather, (n - 1) / n times for a reduce_scatter or all_to_all (Thakur,
    Rabenseifner and Gropp 2005); in a tree an all_reduce sends it up once and down once.

    >>> str(Collective("all_gather", 4096, "bfloat16", 8, group="dp"))
    'all_gather 4.0 KiB bfloat16 · dp, 8 ranks'
    """

    kind: CollectiveKind
    nbytes: int
    dtype: str = ""
    group_size: int = 1  # ranks
    group: str = ""  # the mesh dimension, or "ranks 1 and 3"; "" where all ranks take part
    phase: CollectivePhase = "other"
    node: NodeId | None = None  # id of the node it belongs to
    module: str = ""
    where: str = ""  # the user's line; "models.py:7, called at train.py:41" where a library's asks
    parameters: tuple[str, ...] = ()  # whose values or gradients went over, as far as is known
    asynchronous: bool | None = None  # could the program go on meanwhile
    waited_where: str = ""  # the line that waited for it, where that is known
    peer: int | None = None  # the one rank that gives, takes or reduces, by its global number
    change: str = ""  # of a DTensor's placements: "Shard(0) -> Replicate"
    gradients: bool | None = None  # did gradients of `parameters` go over, and not their values
    own: bool = (
        False  # did the backward of this graph ask for it; a step's graphs all have them all
    )
    # Of each rank that is known. Collectives that differ in it alone are equal.
    times: tuple[RankTime, ...] = field(default=(), compare=False)

    __repr__ = short_repr

    def __str__(self) -> str:
        size = f" {bytes_text(self.nbytes)} {self.dtype}" if self.kind != "barrier" else ""
        name = f"{self.group}, " if self.group else ""
        return f"{self.kind}{size} · {name}{self.group_size} ranks"


def by_node(collectives: Iterable[Collective]) -> dict[int, list[Collective]]:
    """The collectives of each node that sends what it computes, or the gradient of it.

    What is sent for the sake of parameters is not there: a hook of FSDP or DDP runs while backward
    is at some node, and its parameters' module has it.
    """
    found: dict[int, list[Collective]] = {}
    for each in collectives:
        if each.node is not None and not each.parameters:
            found.setdefault(each.node, []).append(each)
    return found


def with_times(copies: Sequence[Collective]) -> Collective:
    """A collective as several ranks have it: the first one's, with the times of all, each rank's
    once. Where groups of one name have roots of their own, it has none."""
    times = {time.rank: time for each in copies for time in each.times}
    peer = copies[0].peer if len({each.peer for each in copies}) == 1 else None
    return replace(copies[0], times=tuple(times.values()), peer=peer)


class RankWait(NamedTuple):
    """Ranks that stood in a collective until another rank came."""

    collective: Collective  # as the first that waited has it
    late: int  # the rank that came last
    seconds: tuple[tuple[int, float], ...]  # rank -> how long it stood for that alone, at least


def rank_rounds(
    collectives: Iterable[Collective],
) -> Iterator[list[tuple[Collective, RankTime]]]:
    """The collectives that ranks of a group were in together, each as every rank has it.

    The first of a group on one rank is the first on the others, and so on. A message from one rank
    to another is a round of two: its `send` and its `recv`.
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
    """From which rank to which a message goes; (-1, -1) for what all ranks of a group are in."""
    if collective.kind not in _MESSAGES or collective.peer is None:
        return -1, -1
    return (rank, collective.peer) if collective.kind == "send" else (collective.peer, rank)


def _is_one_kind(some: Sequence[tuple[Collective, RankTime]]) -> bool:
    kinds = {each.kind for each, _ in some}
    return len(kinds) == 1 and kinds.isdisjoint(_MESSAGES)


def rank_waits(collectives: Iterable[Collective]) -> Iterator[RankWait]:
    """Who waits for whom, in the order of the program, from the times of several ranks.

    Ranks have no clock in common. The rank that needs the least time from its call to the result
    came last, and the collective itself takes no longer than that: what another rank stood in it
    beyond that time, it stood because it waited.

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


def aligned(collectives: Sequence[Collective]) -> dict[int, list[tuple[float, float, Collective]]]:
    """By rank, when it began to stand in which collective, on an axis for all, and how long.

    Seconds. The axis begins where the first rank's recording began.
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
    """Where it stood. The call takes a moment; where it waited later, it stood at the end."""
    standing, seconds = time.standing or 0.0, time.seconds
    begin = time.begin if seconds is None else time.begin + max(0.0, seconds - standing)
    return begin, standing


def _shifts(collectives: Sequence[Collective]) -> dict[int, float]:
    """What to add to the times of each rank."""
    shifts: dict[int, float] = {}
    shared = [each for each in collectives if each.kind not in _MESSAGES]
    rounds = [[t for _, t in some if t.seconds is not None] for some in rank_rounds(shared)]
    growing = True
    while growing:  # ranks of several groups are connected by those that they share
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


@dataclass(frozen=True, slots=True)
class CollectiveCalls:
    """How often a rank has begun the same collective: of one kind, in one group, at one line.

    >>> CollectiveCalls("all_reduce", where="train.py:91", times=12).text
    'all_reduce at train.py:91'
    """

    kind: CollectiveKind
    group: str = ""  # the mesh dimension, where there is one
    ranks: tuple[int, ...] = ()  # of the group
    where: str = ""  # the user's line
    times: int = 1

    @property
    def text(self) -> str:
        """Which collective it is."""
        said = f"{self.kind} of {self.group}" if self.group else self.kind
        return f"{said} at {self.where}" if self.where else said


@dataclass(frozen=True, slots=True)
class RankPosition:
    """How far a rank has come with its collectives.

    `state` is "inside" while the rank is in the collective `last`, or waits for it in Python; after
    an error there it is "raised". C++ may wait while it is "outside", and so may a GPU.
    """

    calls: tuple[CollectiveCalls, ...] = ()  # in the order of their first
    last: int | None = None  # of `calls`: which the rank waits for, or has begun last
    state: RankState = "outside"
    error: str = ""  # the class of what ended it

    def check(self) -> None:
        """Raises ValueError for a `last` that is not there."""
        if self.last is not None and not 0 <= self.last < len(self.calls):
            raise ValueError(f"last={self.last} of {len(self.calls)} calls.")
