"""Compute the change between two trees of JSON columns, so that equal parts are written once.

The change of an object is an object with the changes of its members. Any other change is a list:
["=", value] for a new value, ["~", ...] for measured numbers, ["-"] for a removed
member.
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


_MAX_NESTED = 64  # a longer list is assumed to contain only numbers and strings
_NESTS = {dict, list}

Change = dict[str, Any] | list[Any] | None  # None if the trees are equal


def change(old: Any, new: Any, name: str = "") -> Change:
    """Return the change from `old` to `new`, with measured numbers rounded.

    Args:
        old, new: trees of JSON.
        name: the key of the tree in the object that contains it; "" for the outermost tree.

    >>> change({"id": [0, 1], "norm": [1.0]}, {"id": [0, 1], "norm": [2.0]})
    {'norm': ['~', 20]}
    """
    if old == new and type(old) is type(new):
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[str, Any] = {key: ["-"] for key in old if key not in new}
        for key, value in new.items():
            inner = change(old[key], value, key) if key in old else ["=", value]
            if inner is not None:
                found[key] = inner
        return found
    equal_sizes = isinstance(old, list) and isinstance(new, list) and len(old) == len(new)
    if equal_sizes and name in MEASURED:
        return ["~", *changes(old, new, MEASURED[name])]
    return ["=", new]


def apply_change(old: Any, by: Change, name: str = "") -> Any:
    """Return the new tree, in which measured numbers are rounded.

    Args:
        old: the old tree.
        by: the result of `change`.
        name: the key of the tree in the object that contains it; "" for the outermost tree.

    Raises:
        ValueError: if `by` is not a change of `old`.
    """
    if by is None:
        return old
    if isinstance(by, dict) and isinstance(old, dict):
        tree = dict(old)
        for key, inner in by.items():
            if inner == ["-"] and key in tree:
                del tree[key]
            elif key in tree or (isinstance(inner, list) and inner[:1] == ["="]):
                tree[key] = apply_change(tree.get(key), inner, key)
            else:
                raise ValueError(
                    f"a step changes {key!r:.40}, which the previous step does not have."
                )
        return tree
    if isinstance(by, list) and by[:1] == ["="] and len(by) == 2:
        return by[1]
    if isinstance(by, list) and by[:1] == ["~"] and name in MEASURED and isinstance(old, list):
        return apply_changes(old, by[1:], MEASURED[name])
    raise ValueError(f"the change of {name!r:.40} is unknown, or does not fit the previous step.")


def extent(tree: Any) -> int:
    """Return a lower bound of the number of values in a tree.

    An item of a long list counts as one value.
    """
    count, waiting = 0, [tree]
    while waiting:
        part = waiting.pop()
        count += 1
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list):
            if len(part) < _MAX_NESTED and _NESTS & set(map(type, part)):
                waiting += part
            else:
                count += len(part)
    return count
