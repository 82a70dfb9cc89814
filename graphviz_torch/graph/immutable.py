"""Frozen dataclasses that share their methods, for the many classes of events.

`dataclass(frozen=True)` compiles five functions for each class from source text. For the classes of
events, this took a fifth of the time from the import to the first drawn graph.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["Immutable", "immutable"]

if TYPE_CHECKING:  # type checkers know the arguments of a dataclass
    from dataclasses import dataclass as immutable
else:
    immutable = dataclass(init=False, repr=False, eq=False, slots=True)


class Immutable:
    """The methods of a frozen dataclass. The decorator `immutable` adds the fields of a subclass.

    >>> @immutable
    ... class Point(Immutable):
    ...     x: int
    ...     y: int = 0
    >>> Point(1) == Point(x=1, y=0), Point(1) == Point(2)
    (True, False)
    """

    __slots__ = ()
    if TYPE_CHECKING:  # at run time, the annotation would declare a field
        __match_args__: tuple[str, ...]  # names of the fields, which `dataclass` sets

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = self.__match_args__
        declared = type(self).__dict__["__dataclass_fields__"]
        if len(args) > len(names):
            raise TypeError(f"{type(self).__name__} has {len(names)} fields, not {len(args)}")
        positional = names[: len(args)]
        for name in kwargs:
            if name in positional or name not in names:
                raise TypeError(f"{type(self).__name__} got an unexpected argument {name!r}")
        kwargs.update(zip(positional, args, strict=True))
        for name in names:
            value = kwargs.get(name, declared[name].default)
            if value is MISSING:
                raise TypeError(f"{type(self).__name__} needs a value for {name!r}")
            object.__setattr__(self, name, value)

    def _as_tuple(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__match_args__])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._as_tuple() == other._as_tuple()

    def __hash__(self) -> int:
        return hash(self._as_tuple())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._as_tuple()
