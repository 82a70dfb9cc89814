"""Dataclasses and named tuples that are imported in less time.

`dataclasses.dataclass` compiles up to eight functions for each class from source text, when the
module is imported, and `typing.NamedTuple` compiles the annotation of each field. A recording
imports hundreds of such classes and creates instances of a few: their compilation took half of the
time from the import to the first drawn graph. The `__init__` of these dataclasses is compiled when
the first instance is created, and the annotations of these named tuples remain strings.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["NamedTuple", "immutable", "mutable"]


class _FactoryDefault:
    """The default of a field with a `default_factory`, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY_DEFAULT = _FactoryDefault()


def _compile_init(kind: type[Any]) -> Callable[..., None]:
    """Return the `__init__` of a class, with one argument for each field."""
    frozen = any("__setattr__" in vars(base) for base in kind.__mro__[:-1])
    scope: dict[str, Any] = {"_set": object.__setattr__, "_from_factory": _FACTORY_DEFAULT}
    arguments, lines = ["self"], []
    for field in fields(kind):
        name, argument, value = field.name, field.name, field.name
        if field.default is not MISSING:
            scope[f"_{name}_default"] = field.default
            argument = f"{name}=_{name}_default"
        elif field.default_factory is not MISSING:
            scope[f"_{name}_factory"] = field.default_factory
            argument = f"{name}=_from_factory"
            value = f"_{name}_factory() if {name} is _from_factory else {name}"
        arguments.append(argument)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n  ".join(lines or ["pass"])
    text = f"def __init__({', '.join(arguments)}):\n  {body}"
    exec(compile(text, __file__, "exec"), scope)  # in this file, so that it is not the user's code
    made: Callable[..., None] = scope["__init__"]
    made.__annotations__ = {field.name: field.type for field in fields(kind)} | {"return": None}
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    return made


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Compile the `__init__` of the class, and call it. Later instances call it directly."""
    kind = type(self)
    kind.__init__ = _compile_init(kind)
    kind.__init__(self, *args, **kwargs)


class _Signature:
    """The signature of a class, for `help` and documentation."""

    def __get__(self, instance: object, kind: type[Any]) -> inspect.Signature:
        of_init = inspect.signature(_compile_init(kind))
        return of_init.replace(parameters=list(of_init.parameters.values())[1:])


@cache
def _reader(kind: Any, compared: bool) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads all fields of an instance, or those that `==` compares."""
    names = [field.name for field in fields(kind) if field.compare or not compared]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda made: tuple([getattr(made, name) for name in names])


def _values(instance: Any, compared: bool = True) -> tuple[Any, ...]:
    kind: Any = type(instance)
    return _reader(kind, compared)(instance)


def _eq(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _setattr(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _restore(kind: type[Any], *values: Any) -> Any:
    """Return an instance with these values of its fields, for `copy` and `pickle`."""
    made = object.__new__(kind)
    for field, value in zip(fields(kind), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made


def _reduce(self: Any) -> tuple[Any, ...]:
    return _restore, (type(self), *_values(self, compared=False))


_FROZEN = {"__setattr__": _setattr, "__delattr__": _delattr, "__reduce__": _reduce}


def _decorator(frozen: bool) -> Callable[..., Any]:
    """Return a decorator with the arguments `slots` and `eq` of `dataclasses.dataclass`.

    >>> @_decorator(frozen=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(x=1, y=0), Point(1) == Point(2)
    (Point(x=1, y=0), True, False)
    """

    def decorate(kind: type[Any] | None = None, /, *, slots: bool = True, eq: bool = True) -> Any:
        if kind is None:
            return lambda kind: decorate(kind, slots=slots, eq=eq)
        methods = {"__init__": _init, "__repr__": _repr, "__signature__": _Signature()}
        if frozen:
            methods |= _FROZEN
        if eq:
            methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
        defined = {name for base in kind.__mro__[:-1] for name in vars(base)}
        if "__repr__" in defined:  # as one of the bases prints it
            del methods["__repr__"]
        for name, method in methods.items():
            if name not in vars(kind):
                setattr(kind, name, method)
        return dataclass(init=False, repr=False, eq=False, slots=slots)(kind)

    return decorate


class _NamedTupleMeta(type):
    """Metaclass that creates a named tuple from the annotations of a class, as `typing` does."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_: object
    ) -> type[Any]:
        if not bases:
            return super().__new__(cls, name, bases, body)
        hints = body.pop("__annotations__", {})
        defaults = [body.pop(field) for field in hints if field in body]
        module = body.pop("__module__")
        base = namedtuple(name, hints, defaults=defaults, module=module)  # type: ignore[misc]
        for key, value in body.items():
            setattr(base, key, value)
        base.__annotations__ = hints
        return base


if TYPE_CHECKING:  # type checkers know the arguments of a dataclass, and of a named tuple
    from dataclasses import dataclass as immutable
    from dataclasses import dataclass as mutable
    from typing import NamedTuple
else:
    immutable = _decorator(frozen=True)
    mutable = _decorator(frozen=False)

    class NamedTuple(metaclass=_NamedTupleMeta):
        """Base class of named tuples.

        >>> class Point(NamedTuple):
        ...     x: int
        ...     y: int = 0
        >>> Point(1), Point(1).y, isinstance(Point(1), tuple), Point.__bases__
        (Point(x=1, y=0), 0, True, (<class 'tuple'>,))
        """
