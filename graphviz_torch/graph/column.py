"""Declare how tables, pictures and `diff` use the fields of `Node` and `ModuleRow`."""

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
    detail: bool = False  # pictures write the value in a line of the node's box
    # True if `diff` reports different values of two matched nodes or modules, unless one was not
    # recorded. Values that need a tolerance are compared in comparison/diff.py instead.
    compared: bool = False
    color: bool = False  # the drawing option `color_by` accepts the field
    summed: bool = False  # a module or group has the sum of the values inside it

    def text(self, value: Any) -> str:
        """Return a value of the field as text; "" if the value was not recorded."""
        return self.words(value) if is_recorded(value) else ""


def is_recorded(value: Any) -> bool:
    """Return True if a field's value is not None, "" or (), which mean "not recorded".

    >>> is_recorded(0.0), is_recorded(None), is_recorded(""), is_recorded(())
    (True, False, False, False)
    """
    return value is not None and value != "" and value != ()


@cache
def columns_of(cls: type) -> dict[str, Column]:
    """Return field -> declaration for a class, in the order of its fields.

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
    """Return (field, declaration) of a class for all fields except `names`.

    >>> from graphviz_torch.graph import Node
    >>> [name for name, _ in columns_except(Node, "scope", "where", "note", "saved", "seconds")]
    ['module_class', 'attributes', 'placement', 'fingerprints', 'influence', 'reruns', 'values']
    """
    return tuple(each for each in columns_of(cls).items() if each[0] not in names)


def columns_in(cls: type, rows: Iterable[Any]) -> dict[str, Column]:
    """Return field -> declaration for the fields that get a column in a table.

    These are fields with a number in at least one row, and fields with different texts in the rows.

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
    """Return (field, declaration) for the fields that pictures write in a node's box."""
    return tuple((name, column) for name, column in columns_of(cls).items() if column.detail)
