"""Lists and objects of JSON from a file, which are believed only when they have the right form."""

from __future__ import annotations

from typing import Any

LIMIT = 1 << 63  # PyTorch counts sizes and elements no further


def members(data: Any, names: tuple[str, ...], where: str) -> tuple[Any, ...]:
    """The members of an object that has these and no others.

    Raises:
        ValueError: for anything else.
    """
    if not isinstance(data, dict) or data.keys() != set(names):
        listed = ", ".join(map(repr, names[:-1]))
        raise ValueError(f"{where} is not an object of {listed} and {names[-1]!r}.")
    return tuple([data[name] for name in names])


def rows(data: Any, count: int | None, where: str) -> list[Any]:
    """A list of so many values; None: of any number.

    Raises:
        ValueError: for anything else.
    """
    if not isinstance(data, list):
        raise ValueError(f"{where} is not a list.")
    if count is not None and len(data) != count:
        raise ValueError(f"{where} has {len(data)} values for {count}.")
    return data


def integers(data: Any, count: int, where: str, nullable: bool = False) -> list[int]:
    """A list of so many whole numbers from 0, which None may stand among where `nullable`.

    Raises:
        ValueError: for anything else.
    """
    values = rows(data, count, where)
    known = [value for value in values if value is not None] if nullable else values
    if (
        set(map(type, known)) - {int}
        or not 0 <= min(known, default=0) <= max(known, default=0) < LIMIT
    ):
        raise ValueError(f"{where} holds a value that is neither a position nor a length.")
    return values
