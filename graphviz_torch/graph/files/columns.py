"""Encode values of frozen classes as JSON columns, following the classes' annotations.

A codec converts a list of values of one type to JSON, and back:

    int, float, bool    a list; null for None; "NaN", "Infinity", "-Infinity"; complex as [re, im]
    str, TensorMeta     {"distinct": [...], "at": [position in it, null for None]}
    tuple[X, ...]       {"lengths": [...], "items": column of all X, concatenated}
    X | None            like tuple[X, ...], with at most one X for each value
    tuple[X, Y]         [column of X, column of Y]
    a class             {field: column}; a field with its default everywhere is left out
    Event               {"kinds": names of its subclasses, "at": the index in "kinds" of each value,
                         "values": [column of each subclass]}

Files are not trusted: a wrong type, length or position raises a ValueError with the path of the
value. Each value is written once, so the decoded value is never much larger than the file.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import accumulate, chain, repeat
from operator import attrgetter
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from ..events import Event, event_class
from ..tensors import TensorMeta
from ..text import type_text
from .limits import LIMIT, integers, members, rows

_MAX_DIMENSIONS = 64  # PyTorch's limit

_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Codec(Protocol):
    """Interface of a codec, which converts a list of values of one type to JSON and back.

    `where` is the path of the values in the file, for error messages.
    """

    def encode(self, values: list[Any], where: str) -> Any:
        """Return JSON for `values`.

        Raises:
            ValueError: for values that `decode` would refuse; the message begins with `where`.
        """

    def decode(self, data: Any, count: int, where: str, known: Known) -> list[Any]:
        """Return the `count` values in `data`.

        Raises:
            ValueError: if `data` is not what `encode` returns for `count` values; the message
                begins with `where`.
        """


class Known:
    """A cache of decoded columns: a column that two consecutive graphs share is decoded once."""

    def __init__(self) -> None:
        # id() of a column's JSON -> (JSON, number of values, values): previous and current graph
        self._before: dict[int, tuple[Any, int, list[Any]]] = {}
        self._now: dict[int, tuple[Any, int, list[Any]]] = {}

    def decode(self, graph: Codec, columns: Any) -> Any:
        """Return the graph in `columns`, and cache its columns for the next graph."""
        self._before, self._now = self._now, {}
        return self.column(graph, columns, 1, "graph")[0]

    def column(self, codec: Codec, data: Any, count: int, where: str) -> list[Any]:
        """Return the `count` values in `data`, from the cache if possible.

        Raises:
            ValueError: as `Codec.decode`.
        """
        known = self._before.get(id(data))
        if known is None or known[0] is not data or known[1] != count:
            known = data, count, codec.decode(data, count, where, self)
        self._now[id(data)] = known
        return known[2]


@cache
def codec(kind: Any) -> Codec:
    """Return the codec for an annotated type such as `tuple[Edge, ...]`, `str` or `int | None`.

    Raises:
        TypeError: if no codec handles the type.
    """
    if kind in _NUMBERS:
        return Numbers(*_NUMBERS[kind], nullable=False)
    if kind is str:
        return Interned(_text_in, _text_out, nullable=False)
    if kind is TensorMeta:
        return Interned(_meta_in, list, nullable=False)
    if kind is Event:
        return Kinds(event_class, codec)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return Record(kind)
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return Interned(_literal_reader(arguments), _text_out, nullable=False)
    if get_origin(kind) in (Union, types.UnionType):
        classes = [argument for argument in arguments if argument is not type(None)]
        if len(classes) == 1:
            return _optional(codec(classes[0]))
    if get_origin(kind) is tuple and arguments[-1] is Ellipsis:
        return VariableTuple(codec(arguments[0]))
    if get_origin(kind) is tuple:
        return FixedTuple(tuple(map(codec, arguments)))
    raise TypeError(f"no codec for {kind}")


class Numbers:
    """A codec for numbers, and for None if `nullable`."""

    def __init__(self, allowed: tuple[type, ...], refused: tuple[type, ...], nullable: bool):
        self.allowed = allowed
        self.refused = refused
        self.nullable = nullable

    def encode(self, values: list[Any], where: str) -> Any:
        kinds = self._check(values, where)
        real = not any(issubclass(kind, complex) for kind in kinds)
        if real and all(map(math.isfinite, filter(None, values))):
            return values
        return [_plain(value) for value in values]

    def decode(self, data: Any, count: int, where: str, known: Known) -> list[Any]:
        values: list[Any] = rows(data, count, where)
        if float in self.allowed and not {str, list}.isdisjoint(map(type, values)):
            try:
                values = [_number(value, complex in self.allowed) for value in values]
            except (KeyError, OverflowError, TypeError, ValueError):
                raise ValueError(
                    f"{where} contains a value that is neither an int nor a float."
                ) from None
        self._check(values, where)
        return values

    def _check(self, values: list[Any], where: str) -> set[type]:
        kinds = set(map(type, values))
        for kind in kinds:
            fits = issubclass(kind, self.allowed) and not issubclass(kind, self.refused)
            if not fits and not (kind is type(None) and self.nullable):
                raise ValueError(f"{where} contains a value of type {kind.__name__}.")
        if int in kinds:
            whole = values if len(kinds) == 1 else [v for v in values if type(v) is int]
            if not -LIMIT <= min(whole) <= max(whole) < LIMIT:
                raise ValueError(f"{where} contains an integer of more than 64 bits.")
        return kinds


class Interned:
    """A codec for values that repeat.

    It writes a list of the distinct values and, for each value, the position in this list.
    """

    def __init__(self, read: Any, write: Any, nullable: bool):
        self.read = read  # decodes one value, or raises ValueError
        self.write = write
        self.nullable = nullable

    def encode(self, values: list[Any], where: str) -> Any:
        # Hashing is slow. Equal values are mostly the same object, so each object is hashed once.
        objects = dict(zip(map(id, values), values, strict=True))
        at: dict[Any, int | None] = dict.fromkeys(objects.values())
        if self.nullable:
            at.pop(None, None)
        at = {value: i for i, value in enumerate(at)}
        distinct = list(map(self.write, at))
        self._read_all(distinct, where)
        if self.nullable:
            at[None] = None
        places = {key: at[value] for key, value in objects.items()}
        return {"distinct": distinct, "at": list(map(places.__getitem__, map(id, values)))}

    def decode(self, data: Any, count: int, where: str, known: Known) -> list[Any]:
        distinct, at = members(data, ("distinct", "at"), where)
        values = self._read_all(rows(distinct, None, where), where)
        positions = integers(at, count, where, nullable=self.nullable)
        size = len(values)
        if max(set(positions) - {None}, default=-1) >= size:
            raise ValueError(
                f'{where}: an index in "at" is too large: "distinct" has {size} items.'
            )
        if self.nullable:
            return [None if at is None else values[at] for at in positions]
        return list(map(values.__getitem__, positions))

    def _read_all(self, rows: list[Any], where: str) -> list[Any]:
        try:
            if self.read is _text_in and set(map(type, rows)) == {str} and "".join(rows).isascii():
                return rows
            return [self.read(row) for row in rows]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where} contains a wrong value: {error}") from None


class VariableTuple:
    """A codec for tuples of any length."""

    def __init__(self, inner: Codec):
        self.inner = inner

    def encode(self, values: list[Any], where: str) -> Any:
        items = self.inner.encode(list(chain.from_iterable(values)), where)
        return {"lengths": list(map(len, values)), "items": items}

    def decode(self, data: Any, count: int, where: str, known: Known) -> list[Any]:
        lengths, items = members(data, ("lengths", "items"), where)
        sizes = integers(lengths, count, where)
        ends = list(accumulate(sizes, initial=0))
        flat = tuple(known.column(self.inner, items, ends[-1], where))
        return list(map(flat.__getitem__, map(slice, ends, ends[1:])))


class Optional:
    """A codec for a value or None."""

    def __init__(self, inner: Codec):
        self.inner = VariableTuple(inner)

    def encode(self, values: list[Any], where: str) -> Any:
        return self.inner.encode([() if v is None else (v,) for v in values], where)

    def decode(self, data: Any, count: int, where: str, known: Known) -> list[Any]:
        found = self.inner.decode(data, count, where, known)
        if max(map(len, found), default=0) > 1:
            raise ValueError(f"{where} contains several values where one is allowed.")
        return [value[0] if value else None for value in found]


class FixedTuple:
    """A codec for tuples of a fixed length."""

    def __init__(self, inner: tuple[Codec, ...]):
        self.inner = inner

    def encode(self, values: list[Any], where: str) -> Any:
        columns = zip(*values, strict=True) if values else [()] * len(self.inner)
        parts = zip(self.inner, columns, strict=True)
        return [inner.encode(list(column), where) for inner, column in parts]

    def decode(self, data: Any, count: int, where: str, known: Known) -> list[Any]:
        parts = zip(self.inner, rows(data, len(self.inner), where), strict=True)
        columns = [known.column(inner, part, count, where) for inner, part in parts]
        return list(zip(*columns, strict=True))


class Record:
    """A codec for named tuples and dataclasses."""

    def __init__(self, cls: Any):
        self.cls = cls
        if is_dataclass(cls):
            self.defaults = {field.name: field.default for field in fields(cls)}
        else:
            self.defaults = {f: cls._field_defaults.get(f, MISSING) for f in cls._fields}
        self.hints = get_type_hints(cls)

    def encode(self, values: list[Any], where: str) -> Any:
        columns = {}
        for name, default in self.defaults.items():
            column = list(map(attrgetter(name), values))
            if default is MISSING or column.count(default) < len(column):
                columns[name] = codec(self.hints[name]).encode(column, f"{where}.{name}")
        return columns

    def decode(self, data: Any, count: int, where: str, known: Known) -> list[Any]:
        if not isinstance(data, dict):
            raise ValueError(f"{where} is not a JSON object.")
        unknown = data.keys() - self.defaults.keys()
        if unknown:
            raise ValueError(
                f"{where} has an unknown field {min(unknown)!r}. If a newer graphviz_torch wrote "
                "the file, update graphviz_torch."
            )
        columns: list[Iterable[Any]] = []
        for name, default in self.defaults.items():
            if name in data:
                inner = codec(self.hints[name])
                columns.append(known.column(inner, data[name], count, f"{where}.{name}"))
            elif default is MISSING:
                raise ValueError(f"{where} has no field {name!r}.")
            else:
                columns.append([default] * count)
        if hasattr(self.cls, "_fields"):
            return list(map(tuple.__new__, repeat(self.cls), zip(*columns, strict=True)))
        return list(map(self.cls, *columns))


def _optional(inner: Codec) -> Codec:
    if isinstance(inner, Numbers):
        return Numbers(inner.allowed, inner.refused, nullable=True)
    if isinstance(inner, Interned):
        return Interned(inner.read, inner.write, nullable=True)
    return Optional(inner)


# Annotated type -> (allowed types, subclasses of these that are refused: a bool is an int).
_NUMBERS: dict[Any, tuple[tuple[type, ...], tuple[type, ...]]] = {
    int: ((int,), (bool,)),
    float: ((int, float), (bool,)),
    bool: ((bool,), ()),
    Any: ((bool, int, float, complex), ()),  # an element of a tensor
}


def _plain(value: Any) -> Any:
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _number(value: Any, complex_too: bool) -> Any:
    if type(value) is str:
        return _NONFINITE[value]
    if type(value) is list and complex_too:
        real, imag = (_number(part, False) for part in value)
        return complex(real, imag)
    return value


def _text_in(row: Any) -> str:
    if not isinstance(row, str):
        raise TypeError(f"{type_text(row)} is not text.")
    if not row.isascii():
        row.encode()  # raises UnicodeEncodeError, a ValueError, for an unpaired surrogate
    return row


def _text_out(value: Any) -> Any:
    return value


def _literal_reader(allowed: tuple[str, ...]) -> Any:
    def read(row: Any) -> str:
        if row not in allowed:
            raise ValueError(f"{row!r:.40} is none of {', '.join(map(repr, allowed))}.")
        return str(row)

    return read


def _meta_in(row: Any) -> TensorMeta:
    shape, dtype, device = row
    if not isinstance(shape, (list, tuple)) or any(type(size) is not int for size in shape):
        raise TypeError(f"{shape!r:.40} is not a shape.")
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(
            f"a shape of {len(shape):,} dimensions; a tensor has at most {_MAX_DIMENSIONS}."
        )
    if min(shape, default=0) < -1 or math.prod(map(abs, shape)) >= LIMIT:
        raise ValueError(
            f"{shape!s:.60} is not a shape: a size must be 0 or more (-1 if ragged), "
            "and a tensor has fewer than 2**63 elements."
        )
    meta = TensorMeta(tuple(shape), _text_in(dtype), _text_in(device))
    if (meta.nbytes or 0) >= LIMIT:
        raise ValueError(f"{str(meta)[:60]!r} has 2**63 bytes or more.")
    return meta


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
