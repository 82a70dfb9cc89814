"""Check that the ranks of a process group call the same collectives in the same order.

First, the calls of two ranks are compared for each group, one by one. Two calls must have the same
kind and dtype and, for collectives to which all ranks pass equally many bytes, the same size. Each
send needs a receive on the other rank.

Then the order of calls in different groups is compared, because with NCCL a waiting call blocks all
later calls, including those of other groups.

The comparison covers all calls from the creation of the first process group to the end of the last
rehearsed step.

The order of messages relative to collectives, calls of ranks that were not rehearsed, and calls
that depend on a tensor's value are not compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, zip_longest

from ..graph import CollectiveKind
from ..graph.immutable import NamedTuple
from ..graph.text import ranks_text
from ..graph.units import bytes_text
from ..internals.fake.values import line_of
from ..internals.frames import user_frame
from ..internals.hooks.collectives import CollectiveIssued, CollectiveWatch
from ..internals.tensors.metadata import tensor_meta

# Collectives to which all ranks have to pass the same number of bytes.
_EQUAL = frozenset({"all_reduce", "reduce_scatter", "broadcast", "reduce"})
_MESSAGES = frozenset({"send", "recv"})


class CollectiveCall(NamedTuple):
    """A call of a collective by one rank.

    >>> print(CollectiveCall("all_reduce", (0, 1), 4096, "float32", "train.py:9"))
    all_reduce of 4.0 KiB float32 at train.py:9
    """

    kind: CollectiveKind
    ranks: tuple[int, ...]  # ranks of the process group
    nbytes: int  # size of this rank's input, or of its output if it only receives
    dtype: str
    where: str
    peer: int | None = None  # the other rank of a message

    def __str__(self) -> str:
        size = f" of {bytes_text(self.nbytes)} {self.dtype}" if self.kind != "barrier" else ""
        peer = {"send": " to", "recv": " from"}.get(self.kind, "")
        other = f"{peer} rank {self.peer}" if peer and self.peer is not None else ""
        return f"{self.kind}{size}{other} at {self.where}"


class CollectiveMismatch(NamedTuple):
    """The first collective call in which two ranks differ.

    >>> calls = {0: CollectiveCall("barrier", (0, 1), 0, "", "train.py:9"), 1: None}
    >>> print(CollectiveMismatch((0, 1), 1, calls))
    ranks 0 and 1, their 1st: barrier at train.py:9 on rank 0, and nothing on rank 1
    """

    ranks: tuple[int, ...]  # ranks of the group, or two ranks if calls of different groups differ
    # Number of the call among the group's collectives, or among the messages, from 1 on.
    number: int
    calls: Mapping[int, CollectiveCall | None]  # rank -> its call; None: no more calls

    def __str__(self) -> str:
        groups = {each.ranks for each in self.calls.values() if each is not None}
        if len(groups) > 1:
            calls = [
                f"{each.kind} among {ranks_text(each.ranks)} at {each.where} on rank {rank}"
                for rank, each in self.calls.items()
                if each is not None
            ]
            what = "call collectives of several groups in different orders, first their"
            return f"{ranks_text(self.ranks)} {what} {ordinal(self.number)}: {', and '.join(calls)}"
        calls = [
            f"{'nothing' if each is None else each} on rank {rank}"
            for rank, each in self.calls.items()
        ]
        return f"{ranks_text(self.ranks)}, their {ordinal(self.number)}: {', and '.join(calls)}"


class OrderWatch:
    """A context manager that collects the collective calls of the `with` block."""

    def __init__(self) -> None:
        self.calls: list[CollectiveCall] = []
        self._watch = CollectiveWatch(on_issue=self._on_issue)

    def __enter__(self) -> OrderWatch:
        self._watch.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._watch.__exit__(None, None, None)

    def _on_issue(self, event: CollectiveIssued) -> None:
        metas = [tensor_meta(tensor) for tensor in event.given if event.kind != "barrier"]
        self.calls.append(
            CollectiveCall(
                event.kind,
                event.group.ranks,
                sum(meta.nbytes or 0 for meta in metas),
                metas[0].dtype if metas else "",
                line_of(user_frame(sys._getframe(1))),
                event.peer if event.kind in _MESSAGES else None,
            )
        )


def compare_order(orders: Mapping[int, Sequence[CollectiveCall]]) -> list[CollectiveMismatch]:
    """Return the mismatches that make ranks hang or exchange wrong data.

    Args:
        orders: `Rehearsal.order` of each rehearsed rank, by rank.

    Returns:
        The first mismatch in each process group that contains two rehearsed ranks. If there is
        none, for each pair of ranks the first two calls that belong to different groups.

    >>> one = CollectiveCall("all_reduce", (0, 1), 8, "float32", "train.py:9")
    >>> compare_order({0: [one, one], 1: [one, one]})
    []
    >>> [found] = compare_order({0: [one, one], 1: [one]})
    >>> found.number, found.calls[1]
    (2, None)
    """
    found: dict[tuple[int, ...], CollectiveMismatch] = {}
    pairs = list(combinations(sorted(orders.items()), 2))
    for (one, mine), (other, its) in pairs:
        for differing in _differing(one, mine, other, its):
            found.setdefault(differing.ranks, differing)
    if not found:
        for (one, mine), (other, its) in pairs:
            for differing in _between_groups(one, mine, other, its):
                found.setdefault(differing.ranks, differing)
    return list(found.values())


def representative_ranks(rank: int, order: Sequence[CollectiveCall]) -> list[int]:
    """Return ranks to compare with `rank`, for a number of ranks that is too large to rehearse all.

    These are the first, second and last rank of each process group of `rank`. If the ranks of a
    group send messages to each other, all ranks of the group are returned.

    Args:
        rank: the rank that was rehearsed.
        order: `Rehearsal.order` of this rank.

    >>> representative_ranks(0, [CollectiveCall("barrier", tuple(range(8)), 0, "", "")])
    [1, 7]
    """
    wanted: set[int] = set()
    for ranks in {each.ranks for each in order}:
        messages = any(each.ranks == ranks and each.kind in _MESSAGES for each in order)
        wanted.update(ranks if messages else (ranks[0], ranks[1 % len(ranks)], ranks[-1]))
    return sorted(wanted - {rank})


def _differing(
    one: int, mine: Sequence[CollectiveCall], other: int, its: Sequence[CollectiveCall]
) -> Iterator[CollectiveMismatch]:
    shared = {each.ranks: None for each in (*mine, *its) if {one, other} <= set(each.ranks)}
    for ranks in shared:
        rows = [
            [each for each in row if each.ranks == ranks and each.kind not in _MESSAGES]
            for row in (mine, its)
        ]
        yield from _first(ranks, (one, other), rows)
    for source, sends, target, takes in ((one, mine, other, its), (other, its, one, mine)):
        rows = [
            [each for each in sends if each.kind == "send" and each.peer == target],
            [each for each in takes if each.kind == "recv" and each.peer == source],
        ]
        yield from _first((source, target), (source, target), rows)


def _between_groups(
    one: int, mine: Sequence[CollectiveCall], other: int, its: Sequence[CollectiveCall]
) -> Iterator[CollectiveMismatch]:
    rows = [
        [each for each in row if {one, other} <= set(each.ranks) and each.kind not in _MESSAGES]
        for row in (mine, its)
    ]
    for number, both in enumerate(zip(*rows, strict=True), 1):
        if both[0].ranks != both[1].ranks:
            yield CollectiveMismatch(
                (one, other), number, dict(zip((one, other), both, strict=True))
            )
            return


def _first(
    ranks: tuple[int, ...], pair: tuple[int, int], rows: Sequence[Sequence[CollectiveCall]]
) -> Iterator[CollectiveMismatch]:
    for number, both in enumerate(zip_longest(*rows), 1):
        if not _match(*both):
            yield CollectiveMismatch(ranks, number, dict(zip(pair, both, strict=True)))
            return


def _match(a: CollectiveCall | None, b: CollectiveCall | None) -> bool:
    if a is None or b is None or a.dtype != b.dtype:
        return False
    if a.kind in _MESSAGES:
        return a.nbytes == b.nbytes
    return a.kind == b.kind and (a.kind not in _EQUAL or a.nbytes == b.nbytes)


def ordinal(number: int) -> str:
    """Return an ordinal number as text, such as "2nd" for 2."""
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 % 10 == 1 else ends.get(number % 10, 'th')}"
