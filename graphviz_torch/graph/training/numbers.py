"""Compact coding of measured numbers: two digits, as the difference to the step before.

A norm differs in every digit from one training step to the next, but readers need two or three
digits. Rounded to two digits, a norm is usually only a few units from its previous value, and all
printed digits are exact. A mean, which is near zero, has one digit. Zero, NaN and infinities are
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_LOWEST = -324  # the exponent of the least double
_LARGEST = 1.7e308
_UNMEASURED = (None, "NaN", "Infinity", "-Infinity")
# Digits of the fields that are written so.
MEASURED = {"norm": 2, "max_abs": 2, "mean": 1, "zero_fraction": 2, "seconds": 2}


def changes(old: Sequence[Any], new: Sequence[Any], digits: int = 2) -> list[Any]:
    """Return, for each number, its distance in units from the previous one; other values unchanged.

    >>> changes([1.0, 1.0, None], [1.05, -1.05, 0.512])
    [2, 3, 58224]
    >>> applied([1.0, 1.0, None], [2, 3, 58224])
    [1.1, -1.1, 0.51]
    """
    pairs = zip(old, new, strict=True)
    return [b if b in _UNMEASURED else _place(b, digits) - _place(a, digits) for a, b in pairs]


def applied(old: Sequence[Any], changed: Sequence[Any], digits: int = 2) -> list[Any]:
    """Return the numbers, given the previous ones and the result of `changes`.

    Raises:
        ValueError: for what it did not give.
    """
    if len(old) != len(changed):
        raise ValueError(f"it changes {len(changed)} numbers, and there are {len(old)}.")
    found = []
    for a, step in zip(old, changed, strict=True):
        if type(step) is not int and step not in _UNMEASURED:
            raise ValueError(f"{step!r:.40} is not a step on the scale of numbers.")
        found.append(_number(_place(a, digits) + step, digits) if type(step) is int else step)
    return found


@lru_cache(1 << 15)
def _place(number: Any, digits: int) -> int:
    """The place of a number among those of these digits, doubled, with 1 added for one below 0."""
    if number in _UNMEASURED or number == 0:
        return 0
    size = min(abs(number), _LARGEST)
    mantissa, _, exponent = f"{size:.{digits - 1}e}".partition("e")
    first = 10 ** (digits - 1)
    place: int = (int(exponent) - _LOWEST) * 9 * first + int(mantissa.replace(".", "")) - first + 1
    place -= size < 1 <= float(f"{mantissa}e{exponent}")  # a fraction of 0.999 must not become 1
    return 2 * place + int(number < 0)


@lru_cache(1 << 15)
def _number(place: int, digits: int) -> float:
    first = 10 ** (digits - 1)
    exponent, mantissa = divmod(place // 2 - 1, 9 * first)
    power = exponent + _LOWEST - digits + 1
    size = float(f"{mantissa + first}e{power}") if place > 1 else 0.0
    if place < 0 or size > _LARGEST:
        raise ValueError(f"{place} is not the place of a number.")
    return -size if place % 2 else size
