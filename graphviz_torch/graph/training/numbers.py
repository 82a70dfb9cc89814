"""Encode measured numbers compactly: round them to two digits, and write differences.

All digits of a norm change from step to step, but readers need only two or three. A norm rounded to
two significant digits usually differs from that of the previous step by a few units of the last
digit, so the difference takes few characters. A mean, which is near zero, is rounded to one digit.
Zero, NaN and infinities are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_MIN_EXPONENT = -324  # exponent of the smallest double
_MAX_NUMBER = 1.7e308
_UNMEASURED = (None, "NaN", "Infinity", "-Infinity")
# Field of `GradientStats` or `Node` -> number of significant digits to keep.
MEASURED = {"norm": 2, "max_abs": 2, "mean": 1, "zero_fraction": 2, "seconds": 2}


def changes(old: Sequence[Any], new: Sequence[Any], digits: int = 2) -> list[Any]:
    """Return the difference of each new number from the old one, in units of the last kept digit.

    A unit grows with each power of ten, like the distance between floating-point numbers. Values
    that are not finite numbers are returned unchanged.

    >>> changes([1.0, 1.0, None], [1.05, -1.05, 0.512])
    [2, 3, 58224]
    >>> apply_changes([1.0, 1.0, None], [2, 3, 58224])
    [1.1, -1.1, 0.51]
    """
    pairs = zip(old, new, strict=True)
    return [b if b in _UNMEASURED else _place(b, digits) - _place(a, digits) for a, b in pairs]


def apply_changes(old: Sequence[Any], changed: Sequence[Any], digits: int = 2) -> list[Any]:
    """Return the rounded new numbers, given the old numbers and the result of `changes`.

    Raises:
        ValueError: if `changes` cannot have returned `changed`.
    """
    if len(old) != len(changed):
        raise ValueError(
            f"a step changes {len(changed)} numbers of a column, but the previous step has "
            f"{len(old)}."
        )
    found = []
    for a, step in zip(old, changed, strict=True):
        if type(step) is not int and step not in _UNMEASURED:
            raise ValueError(
                f"a change between two steps is {step!r:.40}; it must be a whole number."
            )
        found.append(_number(_place(a, digits) + step, digits) if type(step) is int else step)
    return found


@lru_cache(1 << 15)
def _place(number: Any, digits: int) -> int:
    """Return the code of a number: an integer, so that near numbers have near codes.

    It is twice the position of the absolute value among all positive numbers of `digits`
    significant digits, plus 1 if the number is negative.
    """
    if number in _UNMEASURED or number == 0:
        return 0
    size = min(abs(number), _MAX_NUMBER)
    mantissa, _, exponent = f"{size:.{digits - 1}e}".partition("e")
    first = 10 ** (digits - 1)
    place: int = (
        (int(exponent) - _MIN_EXPONENT) * 9 * first + int(mantissa.replace(".", "")) - first + 1
    )
    # A number below 1, such as a zero_fraction of 0.999, must not be rounded to 1.
    place -= size < 1 <= float(f"{mantissa}e{exponent}")
    return 2 * place + int(number < 0)


@lru_cache(1 << 15)
def _number(place: int, digits: int) -> float:
    first = 10 ** (digits - 1)
    exponent, mantissa = divmod(place // 2 - 1, 9 * first)
    power = exponent + _MIN_EXPONENT - digits + 1
    size = float(f"{mantissa + first}e{power}") if place > 1 else 0.0
    if place < 0 or size > _MAX_NUMBER:
        raise ValueError(f"{place} does not encode a number.")
    return -size if place % 2 else size
