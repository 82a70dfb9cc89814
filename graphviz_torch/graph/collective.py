"""What ranks sent to each other: one collective, as a plain value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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
    waited: str = ""  # the line that waited for it, where that is known
    peer: int | None = None  # the one rank that gives, takes or reduces, by its global number
    change: str = ""  # of a DTensor's placements: "Shard(0) -> Replicate"
    gradients: bool | None = None  # did gradients of `parameters` go over, and not their values

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
