"""Compute the change between two trees of JSON columns, so that equal parts are written once.

The change of an object is an object with the changes of its members. Any other change is a list:
["=", value] for a new value, ["~", ...] for measured numbers (see numbers.py), ["-"] for a removed
member.
"""

from __future__ import annotations

from typing import Any

from .numbers import MEASURED, apply_changes, changes

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
