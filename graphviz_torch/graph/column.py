"""Declarations of the fields of `Node` and `ModuleRow`: title, text and use in tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

Row = TypeVar("Row")


class Column(NamedTuple):
    """The declaration of a field of `Node` or `ModuleRow`.

    The declaration is part of the field's type, as in `seconds: Annotated[float | None,
    Column("time", seconds_text)]`.
    """

    title: str  # heading in `to_text`, `summary` and `diff`
    words: Callable[[Any], str] = str  # formats a recorded value
    detail: bool = False  # pictures print the value in a line below the node
    # True: `diff` reports unequal values where both nodes, or both modules, have a value. Values
    # that need a tolerance are compared in comparison/diff.py.
    compared: bool = False
    color: bool = False  # `color_by` accepts the field; numbers get a color scale
    summed: bool = False  # the value of a module or group is the sum over what it contains

    def text(self, value: Any) -> str:
        """Return a value as text; "" if nothing was recorded."""
        return self.words(value) if is_recorded(value) else ""


def is_recorded(value: Any) -> bool:
    """Return True if a field's value is not None, "" or (), which mean "not recorded".

    >>> is_recorded(0.0), is_recorded(None), is_recorded(""), is_recorded(())
    (True, False, False, False)
    """
    return value is not None and value != "" and value != ()


@cache
def columns_of(cls: type) -> dict[str, Column]:
    """Return the declarations of a class by field, in the order of its fields.

    >>> from graphviz_torch.graph import Node
    >>> columns_of(Node)["scope"].title
    'module'
    """
    found: dict[str, Column] = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        found.update((name, part) for part in get_args(hint)[1:] if isinstance(part, Column))
    return found


@cache
def columns_except(cls: type, *names: str) -> tuple[tuple[str, Column], ...]:
    """Return the declarations of all fields except those named, which a format writes in its own
    way.

    >>> from graphviz_torch.graph import Node
    >>> [name for name, _ in columns_except(Node, "scope", "where", "note", "saved", "seconds")]
    ['module_class', 'attributes', 'placement', 'fingerprints', 'influence', 'reruns', 'values']
    """
    return tuple(each for each in columns_of(cls).items() if each[0] not in names)


def columns_in(cls: type, rows: Iterable[Any]) -> dict[str, Column]:
    """Return the declarations of the fields that deserve a table column.

    These are fields with a number in some row, and fields whose texts differ between rows.

    >>> from graphviz_torch.graph import ModuleRow
    >>> [*columns_in(ModuleRow, [ModuleRow("a", mode="train"), ModuleRow("b", mode="eval")])]
    ['mode']
    >>> columns_in(ModuleRow, [ModuleRow("a", mode="train"), ModuleRow("b", mode="train")])
    {}
    """
    rows = list(rows)
    found: dict[str, Column] = {}
    for name, column in columns_of(cls).items():
        values = {getattr(row, name) for row in rows}
        if any(map(is_recorded, values)) and (len(values) > 1 or not isinstance(values.pop(), str)):
            found[name] = column
    return found


@cache
def details(cls: type) -> tuple[tuple[str, Column], ...]:
    """Return the declarations of the fields that pictures print below a node."""
    return tuple((name, column) for name, column in columns_of(cls).items() if column.detail)
