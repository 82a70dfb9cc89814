"""Checks for lists and objects of JSON from an untrusted file."""

from __future__ import annotations

from typing import Any

LIMIT = 1 << 63  # all sizes and element counts in PyTorch are smaller


def members(data: Any, names: tuple[str, ...], where: str) -> tuple[Any, ...]:
    """Return the values of a JSON object that must have exactly the keys `names`.

    Raises:
        ValueError: if `data` is not such an object; the message begins with `where`.
    """
    if not isinstance(data, dict) or data.keys() != set(names):
        listed = ", ".join(map(repr, names[:-1]))
        raise ValueError(f"{where} is not an object with the keys {listed} and {names[-1]!r}.")
    return tuple([data[name] for name in names])


def rows(data: Any, count: int | None, where: str) -> list[Any]:
    """Return `data` after checking that it is a list of `count` values.

    Raises:
        ValueError: if `data` is not a list, or has another number of values than `count` (unless
            `count` is None). The message begins with `where`.
    """
    if not isinstance(data, list):
        raise ValueError(f"{where} is not a list.")
    if count is not None and len(data) != count:
        raise ValueError(f"{where} has {len(data)} values instead of {count}.")
    return data


def integers(data: Any, count: int, where: str, nullable: bool = False) -> list[int]:
    """Return `data` after checking that it is a list of `count` non-negative integers.

    If `nullable`, values may also be None.

    Raises:
        ValueError: if `data` is not such a list; the message begins with `where`.
    """
    values = rows(data, count, where)
    known = [value for value in values if value is not None] if nullable else values
    if (
        set(map(type, known)) - {int}
        or not 0 <= min(known, default=0) <= max(known, default=0) < LIMIT
    ):
        raise ValueError(f"{where} contains a value that is not an integer from 0 to 2**63 - 1.")
    return values
