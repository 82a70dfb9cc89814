"""Encode a column with values of several classes, such as different events.

"kinds" are the classes, "at" has the position of each value's class in "kinds", and "values" has a
column for each class:

    {"kinds": ["Clip", "Step"], "at": [0, 1, 0], "values": [column of Clips, column of Steps]}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .limits import integers, members, rows


class Kinds:
    """A codec for values of several classes, with one column per class.

    Args:
        find: a function that returns the class with a name, or None.
        codec: a function that returns the codec of a class.
    """

    def __init__(self, find: Callable[[str], Any], codec: Callable[[Any], Any]) -> None:
        self._find = find
        self._codec = codec

    def encode(self, values: list[Any], where: str) -> Any:
        """Return the JSON object for these values."""
        groups: dict[type, list[Any]] = {}
        for value in values:
            groups.setdefault(type(value), []).append(value)
        for cls in groups:
            if self._find(cls.__name__) is not cls:
                raise ValueError(f"{where} contains a value of type {cls.__name__}.")
        place = {cls: at for at, cls in enumerate(groups)}
        return {
            "kinds": [cls.__name__ for cls in groups],
            "at": [place[type(value)] for value in values],
            "values": [
                self._codec(cls).encode(group, f"{where}.{cls.__name__}")
                for cls, group in groups.items()
            ],
        }

    def decode(self, data: Any, count: int, where: str, known: Any) -> list[Any]:
        """Return the `count` values in `data`.

        Raises:
            ValueError: if `data` is not what `encode` returns for `count` values; the message
                begins with `where`.
        """
        kinds, at, columns = members(data, ("kinds", "at", "values"), where)
        names = rows(kinds, None, where)
        places = integers(at, count, where)
        if max(places, default=-1) >= len(names):
            raise ValueError(
                f'{where}: an index in "at" is too large: "kinds" has {len(names)} items.'
            )
        groups: dict[type, Any] = {}
        for i, (name, column) in enumerate(
            zip(names, rows(columns, len(names), where), strict=True)
        ):
            cls = self._find(name) if isinstance(name, str) else None
            if cls is None:
                raise ValueError(
                    f"{where} has an unknown kind {name!r:.40}. If a newer graphviz_torch wrote "
                    "the file, update graphviz_torch."
                )
            if cls in groups:
                raise ValueError(f"{where} has the kind {name!r} twice.")
            own = known.column(self._codec(cls), column, places.count(i), f"{where}.{name}")
            groups[cls] = iter(own)
        values = list(groups.values())
        return [next(values[place]) for place in places]
