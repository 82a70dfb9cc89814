"""Encode measured numbers compactly: round them to two digits, and write differences.

All digits of a norm change from step to step, but readers need only two or three. A norm that is
rounded to two significant digits is usually a few units from the previous step's norm, so the
difference is short. A mean is near zero and keeps one digit. Zero, NaN and infinities are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_MIN_EXPONENT = -324  # exponent of the smallest double
_MAX_NUMBER = 1.7e308
_UNMEASURED = (None, "NaN", "Infinity", "-Infinity")
# Fields that are encoded in this way, and their significant digits.
MEASURED = {"norm": 2, "max_abs": 2, "mean": 1, "zero_fraction": 2, "seconds": 2}


def changes(old: Sequence[Any], new: Sequence[Any], digits: int = 2) -> list[Any]:
    """Return each new number's distance from the old number, in units of the last kept digit.

    Values that are not finite numbers are returned unchanged.

    >>> changes([1.0, 1.0, None], [1.05, -1.05, 0.512])
    [2, 3, 58224]
    >>> apply_changes([1.0, 1.0, None], [2, 3, 58224])
    [1.1, -1.1, 0.51]
    """
    pairs = zip(old, new, strict=True)
    return [b if b in _UNMEASURED else _place(b, digits) - _place(a, digits) for a, b in pairs]


def apply_changes(old: Sequence[Any], changed: Sequence[Any], digits: int = 2) -> list[Any]:
    """Return the new numbers, rounded, given the old numbers and the result of `changes`.

    Raises:
        ValueError: if `changes` cannot have returned `changed`.
    """
    if len(old) != len(changed):
        raise ValueError(
            f"a step changes {len(changed)} numbers, but the step before has {len(old)}."
        )
    found = []
    for a, step in zip(old, changed, strict=True):
        if type(step) is not int and step not in _UNMEASURED:
            raise ValueError(
                f"{step!r:.40} is not a whole number, which a change between two steps is."
            )
        found.append(_number(_place(a, digits) + step, digits) if type(step) is int else step)
    return found


@lru_cache(1 << 15)
def _place(number: Any, digits: int) -> int:
    """Return twice the number's position among all positive numbers of `digits` digits, plus 1 if
    the number is negative.
    """
    if number in _UNMEASURED or number == 0:
        return 0
    size = min(abs(number), _MAX_NUMBER)
    mantissa, _, exponent = f"{size:.{digits - 1}e}".partition("e")
    first = 10 ** (digits - 1)
    place: int = (
        (int(exponent) - _MIN_EXPONENT) * 9 * first + int(mantissa.replace(".", "")) - first + 1
    )
    # A fraction below 1 must not be rounded to 1.
    place -= size < 1 <= float(f"{mantissa}e{exponent}")
    return 2 * place + int(number < 0)


@lru_cache(1 << 15)
def _number(place: int, digits: int) -> float:
    first = 10 ** (digits - 1)
    exponent, mantissa = divmod(place // 2 - 1, 9 * first)
    power = exponent + _MIN_EXPONENT - digits + 1
    size = float(f"{mantissa + first}e{power}") if place > 1 else 0.0
    if place < 0 or size > _MAX_NUMBER:
        raise ValueError(f"{place} is not the code of a number.")
    return -size if place % 2 else size
