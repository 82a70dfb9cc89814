"""A storage of a rehearsal, from its making to its end, and on which side it lies: device or host.

What one operator reads and writes lies on one side. So storages are joined as operators take them
together, and where the program puts one on the device, all that are joined with it lie there, from
their making on. Only copies go from one side to the other.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LOOP = "the loop"  # what runs in no forward, no backward and no step of an optimizer


class Side:
    """Where some storages lie, all of them together."""

    __slots__ = ("_device", "_joined")

    def __init__(self) -> None:
        self._device = False
        self._joined: Side | None = None  # the side that this one has become

    def found(self) -> Side:
        """The side that all of them have."""
        side = self
        while side._joined is not None:
            if side._joined._joined is not None:
                side._joined = side._joined._joined
            side = side._joined
        return side

    @property
    def device(self) -> bool:
        """Is it the device."""
        return self.found()._device

    def put(self) -> None:
        """It is the device."""
        self.found()._device = True

    def join(self, other: Side) -> None:
        """Both are one side."""
        mine, its = self.found(), other.found()
        if mine is not its:
            its._joined = mine
            mine._device |= its._device


class Block:
    """A storage, while it has one size."""

    __slots__ = ("born", "died", "module", "nbytes", "phase", "role", "side", "where")

    def __init__(
        self, nbytes: int, born: int, phase: str, here: tuple[str, str], side: Side
    ) -> None:
        self.nbytes, self.born, self.died = nbytes, born, sys.maxsize
        self.phase, (self.module, self.where) = phase, here
        self.role, self.side = "temporary", side


class Peak(NamedTuple):
    """The most bytes that were there at once."""

    nbytes: int
    moment: int
    at: tuple[str, str, str]  # phase, module and line


def peak_of(blocks: Iterable[Block], first: int) -> Peak:
    """The most from a moment on. Each moment has one change."""
    total, changes = 0, []
    for block in blocks:
        if block.born > first:
            changes.append((block.born, block.nbytes, block))
        else:
            total += block.nbytes
        if block.died < sys.maxsize:
            changes.append((block.died, -block.nbytes, block))
    most = Peak(total, first, (LOOP, "", ""))
    for moment, nbytes, block in sorted(changes, key=lambda change: change[0]):
        total += nbytes
        if total > most.nbytes:
            most = Peak(total, moment, (block.phase, block.module, block.where))
    return most


def at_moment(blocks: Iterable[Block], moment: int) -> list[Block]:
    """Those that were there."""
    return [block for block in blocks if block.born <= moment < block.died]


def totals(blocks: Iterable[Block], by: str) -> Sequence[tuple[str, int]]:
    """Bytes by a field of the blocks, most first."""
    found: Counter[str] = Counter()
    for block in blocks:
        found[getattr(block, by)] += block.nbytes
    return found.most_common()
