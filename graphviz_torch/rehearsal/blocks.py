"""Track the storages of a rehearsal: their lifetimes, their roles, and their placement.

Each storage is placed on the device or on the host. Except for copies, all tensors of one operator
have the same placement, so the storages that an operator uses are joined. If the program places one
of them on the device, all joined storages count as being on the device, even for the time before.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from ..graph.immutable import NamedTuple

LOOP = "the loop"  # phase of code that is not in forward, backward or an optimizer step


class Placement:
    """The placement (device or host) of joined storages. It is a node of a union-find forest."""

    __slots__ = ("_device", "_joined")

    def __init__(self) -> None:
        self._device = False
        self._joined: Placement | None = None  # parent in the union-find forest

    def root(self) -> Placement:
        """Return the placement that represents all joined placements."""
        side = self
        while side._joined is not None:
            if side._joined._joined is not None:
                side._joined = side._joined._joined
            side = side._joined
        return side

    @property
    def device(self) -> bool:
        """True if these storages are on the device."""
        return self.root()._device

    def put(self) -> None:
        """Place these storages on the device."""
        self.root()._device = True

    def join(self, other: Placement) -> None:
        """Give the storages of both, and all storages joined with them, the same placement."""
        mine, its = self.root(), other.root()
        if mine is not its:
            its._joined = mine
            mine._device |= its._device


class StorageBlock:
    """A storage, from the moment at which it gets its size until it is freed or resized.

    Args:
        nbytes: size of the storage in bytes.
        allocated_at: moment of the allocation. A moment is the number of allocations and frees so
            far.
        phase: phase of the allocation: "forward", "backward", "optimizer" or `LOOP`.
        position: module and line that allocated the storage.
        placement: placement of the storage.
    """

    __slots__ = (
        "allocated_at",
        "freed_at",
        "module",
        "nbytes",
        "phase",
        "placement",
        "role",
        "where",
    )

    def __init__(
        self,
        nbytes: int,
        allocated_at: int,
        phase: str,
        position: tuple[str, str],
        placement: Placement,
    ) -> None:
        self.nbytes, self.allocated_at, self.freed_at = nbytes, allocated_at, sys.maxsize
        self.phase, (self.module, self.where) = phase, position
        self.role, self.placement = "temporary", placement


class Peak(NamedTuple):
    """The largest number of bytes that were allocated at the same time."""

    nbytes: int
    moment: int
    at: tuple[str, str, str]  # phase, module and line


def peak_of(blocks: Iterable[StorageBlock], first: int) -> Peak:
    """Return the peak of memory from moment `first` on."""
    total, changes = 0, []
    for block in blocks:
        if block.allocated_at > first:
            changes.append((block.allocated_at, block.nbytes, block))
        else:
            total += block.nbytes
        if block.freed_at < sys.maxsize:
            changes.append((block.freed_at, -block.nbytes, block))
    most = Peak(total, first, (LOOP, "", ""))
    for moment, nbytes, block in sorted(changes, key=lambda change: change[0]):
        total += nbytes
        if total > most.nbytes:
            most = Peak(total, moment, (block.phase, block.module, block.where))
    return most


def at_moment(blocks: Iterable[StorageBlock], moment: int) -> list[StorageBlock]:
    """Return the blocks that are allocated at a moment."""
    return [block for block in blocks if block.allocated_at <= moment < block.freed_at]


def totals(blocks: Iterable[StorageBlock], by: str) -> Sequence[tuple[str, int]]:
    """Return the bytes of the blocks by the value of a field such as "role", largest first."""
    found: Counter[str] = Counter()
    for block in blocks:
        found[getattr(block, by)] += block.nbytes
    return found.most_common()
