"""Node ids inside other values: a field declares them, as in `node: NodeId | None`."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Value = TypeVar("Value")
Move = Callable[[Any, Callable[[int], int]], Any]

_NODE = object()
NodeId = Annotated[int, _NODE]  # a position in `Graph.nodes`


def moved(value: Value, by: int, **changes: Any) -> Value:
    """Return a copy of a value with `by` added to all node ids in it.

    Args:
        value: of a class whose fields declare them.
        by: a number.
        changes: fields that get these values in the same breath.

    >>> from graphviz_torch.graph import Cut
    >>> cut = moved(Cut("detach", None, before=0, after=(1, 2)), 10)
    >>> cut.before, cut.after
    (10, (11, 12))
    """
    return _moved(value, by.__add__, changes)


def renumbered(value: Value, ids: Sequence[int], **changes: Any) -> Value:
    """Return a copy of a value with node id i replaced by `ids[i]`.

    >>> from graphviz_torch.graph import Cut
    >>> renumbered(Cut("detach", None, before=1), [0, 5]).before
    5
    """
    return _moved(value, ids.__getitem__, changes)


def _inner(value: Any, to: Callable[[int], int]) -> Any:
    return _moved(value, to, {})


def _moved(value: Value, to: Callable[[int], int], changes: dict[str, Any]) -> Value:
    kind: Any = type(value)
    for name, move in _moves(kind):
        if name not in changes:
            changes[name] = move(getattr(value, name), to)
    made: Any = value
    made = made._replace(**changes) if isinstance(value, tuple) else replace(made, **changes)
    return cast(Value, made)


def mentioned(kind: Any, values: Sequence[Any], where: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the ids in values of a type, with the names of the fields that contain them.

    >>> from graphviz_torch.graph import Cut
    >>> cuts = [Cut("detach", None, before=0, after=(1, 2)), Cut("item", None, after=(3,))]
    >>> list(mentioned(Cut, cuts, "cuts"))
    [('cuts.before', [0]), ('cuts.after', [1, 2, 3])]
    """
    if not values:  # such as those of most classes of events
        return
    if _NODE in get_args(kind)[1:]:
        yield where, list(values)
    elif _has_fields(kind):
        for name, hint in _hints(kind).items():
            yield from mentioned(hint, list(map(attrgetter(name), values)), f"{where}.{name}")
    elif get_origin(kind) in (Union, types.UnionType):
        kinds = {type(each) for each in values}
        for part in filter(_holds, get_args(kind)):
            if _has_fields(part):
                own = [each for each in values if type(each) is part] if part in kinds else []
            else:
                own = [each for each in values if each is not None]
            yield from mentioned(part, own, where)
    elif get_args(kind)[1:] == (Ellipsis,):
        yield from mentioned(get_args(kind)[0], list(chain.from_iterable(values)), where)
    else:
        for at, part in enumerate(get_args(kind)):
            if _holds(part):
                yield from mentioned(part, [each[at] for each in values], where)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the types of the fields that hold node ids."""
    names = cls._fields if hasattr(cls, "_fields") else [field.name for field in fields(cls)]
    hints = get_type_hints(cls, include_extras=True)
    for name, hint in hints.items():
        if get_origin(hint) is Annotated and _NODE not in get_args(hint):
            hints[name] = get_args(hint)[0]  # other annotations say nothing about ids
    return {name: hints[name] for name in names if _holds(hints[name])}


@cache
def _holds(kind: Any) -> bool:
    """Return True if a type holds node ids at any depth."""
    if _has_fields(kind):
        return bool(_hints(kind))
    return any(part is _NODE or _holds(part) for part in get_args(kind))


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))


@cache
def _moves(cls: Any) -> tuple[tuple[str, Move], ...]:
    """Return, for each field that holds node ids, the function that renumbers it."""
    return tuple((name, _move(hint)) for name, hint in _hints(cls).items())


def _move(kind: Any) -> Move:
    """Return the function that renumbers the ids in a value of a type."""
    if _NODE in get_args(kind)[1:]:
        return lambda value, to: to(value)
    if _has_fields(kind):
        return _inner
    parts = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        inner = {part: _move(part) for part in parts if _holds(part)}
        if len(inner) > 1:  # of several classes
            return _inner
        [one] = inner.values()
        return lambda value, to: None if value is None else one(value, to)
    if parts[-1] is Ellipsis:
        each = _move(parts[0])
        return lambda values, to: tuple([each(value, to) for value in values])
    moves = [_move(part) if _holds(part) else _same for part in parts]
    return lambda values, to: tuple(
        [move(value, to) for move, value in zip(moves, values, strict=True)]
    )


def _same(value: Any, to: Callable[[int], int]) -> Any:
    return value
