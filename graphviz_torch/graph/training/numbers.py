"""Numbers that a step measured, small: as steps on a scale, and what changed on it.

A norm differs in every digit from one training step to the next, and nobody reads more than two or
three. On a scale with 24 steps from a number to its double each number is off by 1.5 % at most, and
mostly lies a few steps from where it was. Zero, NaN and infinities are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_STEPS = 24  # from a number to its double
_ONE = 1200 * _STEPS  # the place of 1: every double has a place above 0
_LARGEST = 1024 * _STEPS - 1
_UNMEASURED = (None, "NaN", "Infinity", "-Infinity")
# What is written so, by the field that it stands in.
MEASURED = ("norm", "max_abs", "mean", "zero_fraction", "seconds")


def changes(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """How far each number lies from the one in its place before; what is no number as it is.

    >>> changes([1.0, 1.0, None], [1.05, -1.05, 0.5])
    [4, 5, 57552]
    >>> applied([1.0, 1.0, None], [4, 5, 57552])
    [1.0594630943592953, -1.0594630943592953, 0.5]
    """
    pairs = zip(old, new, strict=True)
    return [b if b in _UNMEASURED else _place.__wrapped__(b) - _place(a) for a, b in pairs]


def applied(old: Sequence[Any], changed: Sequence[Any]) -> list[Any]:
    """The numbers, from those before and what `changes` gave.

    Raises:
        ValueError: for what it did not give.
    """
    if len(old) != len(changed):
        raise ValueError(f"it changes {len(changed)} numbers, and there are {len(old)}.")
    found = []
    for a, step in zip(old, changed, strict=True):
        if type(step) is not int and step not in _UNMEASURED:
            raise ValueError(f"{step!r:.40} is not a step on the scale of numbers.")
        found.append(_number(_place(a) + step) if type(step) is int else step)
    return found


@lru_cache(1 << 15)
def _place(number: Any) -> int:
    """The place of a number on the scale, doubled, with 1 added for one below 0."""
    if number in _UNMEASURED or number == 0:
        return 0
    size = abs(number)
    place: int = min(round(math.log2(size) * _STEPS), _LARGEST)
    if not place and size < 1:
        place = -1  # a share of 0.999 is not all
    return 2 * (place + _ONE) + int(number < 0)


@lru_cache(1 << 15)
def _number(place: int) -> float:
    if not 0 <= place // 2 <= _ONE + _LARGEST:
        raise ValueError(f"{place} is not a place on the scale of numbers.")
    size = 2.0 ** ((place // 2 - _ONE) / _STEPS) if place > 1 else 0.0
    return -size if place % 2 else size
