"""Find and replace node ids inside other values.

The type of a field declares that the field contains node ids, as in `node: NodeId | None`.
"""

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


def shift_ids(value: Value, by: int, **changes: Any) -> Value:
    """Return a copy of a value with `by` added to all node ids in it.

    Args:
        value: an instance of a class whose fields declare node ids.
        by: the number to add.
        changes: new values for other fields of the copy.

    >>> from graphviz_torch.graph import Cut
    >>> cut = shift_ids(Cut("detach", None, before=0, after=(1, 2)), 10)
    >>> cut.before, cut.after
    (10, (11, 12))
    """
    return _map_ids(value, by.__add__, changes)


def renumber_ids(value: Value, ids: Sequence[int], **changes: Any) -> Value:
    """Return a copy of a value with node id i replaced by `ids[i]`.

    >>> from graphviz_torch.graph import Cut
    >>> renumber_ids(Cut("detach", None, before=1), [0, 5]).before
    5
    """
    return _map_ids(value, ids.__getitem__, changes)


def _inner(value: Any, to: Callable[[int], int]) -> Any:
    return _map_ids(value, to, {})


def _map_ids(value: Value, to: Callable[[int], int], changes: dict[str, Any]) -> Value:
    kind: Any = type(value)
    for name, move in _renumber_functions(kind):
        if name not in changes:
            changes[name] = move(getattr(value, name), to)
    made: Any = value
    made = made._replace(**changes) if isinstance(value, tuple) else replace(made, **changes)
    return cast(Value, made)


def iter_node_ids(kind: Any, values: Sequence[Any], where: str) -> Iterator[tuple[str, list[int]]]:
    """Yield (path of a field, node ids in this field), for all fields in values of one type.

    Args:
        kind: the type.
        values: values of this type.
        where: path of the values, with which the paths begin.

    >>> from graphviz_torch.graph import Cut
    >>> cuts = [Cut("detach", None, before=0, after=(1, 2)), Cut("item", None, after=(3,))]
    >>> list(iter_node_ids(Cut, cuts, "cuts"))
    [('cuts.before', [0]), ('cuts.after', [1, 2, 3])]
    """
    if not values:
        return
    if _NODE in get_args(kind)[1:]:
        yield where, list(values)
    elif _has_fields(kind):
        classes = dict.fromkeys(map(type, values))  # of events, the subclasses of `Event`
        for cls in classes:
            own = [each for each in values if type(each) is cls] if len(classes) > 1 else values
            for name, hint in _hints(cls).items():
                yield from iter_node_ids(hint, list(map(attrgetter(name), own)), f"{where}.{name}")
    elif get_origin(kind) in (Union, types.UnionType):
        [part] = filter(_contains_ids, get_args(kind))
        yield from iter_node_ids(part, [each for each in values if each is not None], where)
    elif get_args(kind)[1:] == (Ellipsis,):
        yield from iter_node_ids(get_args(kind)[0], list(chain.from_iterable(values)), where)
    else:
        for at, part in enumerate(get_args(kind)):
            if _contains_ids(part):
                yield from iter_node_ids(part, [each[at] for each in values], where)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return field -> type, for the fields of a class that contain node ids."""
    names = cls._fields if hasattr(cls, "_fields") else [field.name for field in fields(cls)]
    hints = get_type_hints(cls, include_extras=True)
    for name, hint in hints.items():
        if get_origin(hint) is Annotated and _NODE not in get_args(hint):
            hints[name] = get_args(hint)[0]  # drop other annotations, such as Column
    return {name: hints[name] for name in names if _contains_ids(hints[name])}


@cache
def _contains_ids(kind: Any) -> bool:
    """Return True if a type contains node ids at any depth."""
    if _has_fields(kind):
        return bool(_hints(kind))
    return any(part is _NODE or _contains_ids(part) for part in get_args(kind))


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))


@cache
def _renumber_functions(cls: Any) -> tuple[tuple[str, Move], ...]:
    """Return (field, function that renumbers the ids in it) for fields that contain node ids."""
    return tuple((name, _renumber_function(hint)) for name, hint in _hints(cls).items())


def _renumber_function(kind: Any) -> Move:
    """Return the function that renumbers the node ids in a value of this type."""
    if _NODE in get_args(kind)[1:]:
        return lambda value, to: to(value)
    if _has_fields(kind):
        return _inner
    parts = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        [one] = map(_renumber_function, filter(_contains_ids, parts))
        return lambda value, to: None if value is None else one(value, to)
    if parts[-1] is Ellipsis:
        each = _renumber_function(parts[0])
        return lambda values, to: tuple([each(value, to) for value in values])
    moves = [_renumber_function(part) if _contains_ids(part) else _keep_value for part in parts]
    return lambda values, to: tuple(
        [move(value, to) for move, value in zip(moves, values, strict=True)]
    )


def _keep_value(value: Any, to: Callable[[int], int]) -> Any:
    return value
