"""What a field of `Node` or `ModuleRow` declares beside its type: how it prints, who may use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

Row = TypeVar("Row")


class Column(NamedTuple):
    """A declaration, as in `seconds: Annotated[float | None, Column("time", seconds_text)]`."""

    title: str  # of its column in `to_text` and `summary`, and of its differences
    words: Callable[[Any], str] = str  # a recorded value as text
    detail: bool = False  # is it printed below the node in pictures, a line for each of its lines
    # Does `diff` tell where both nodes, or modules, have a value and these differ; what needs a
    # tolerance has its own rule in comparison/diff.py.
    compared: bool = False
    color: bool = False  # is the field's name a `color_by`: a scale for numbers, else categories
    summed: bool = False  # do the values of the modules inside a module, or of a group's nodes, add

    def text(self, value: Any) -> str:
        """A value in words; "" where nothing was recorded."""
        return self.words(value) if recorded(value) else ""


def recorded(value: Any) -> bool:
    """Does a field hold more than "not recorded"?

    >>> recorded(0.0), recorded(None), recorded(""), recorded(())
    (True, False, False, False)
    """
    return value is not None and value != "" and value != ()


@cache
def declared(cls: type) -> dict[str, Column]:
    """The declarations of a class by field, in the order of its fields.

    >>> from graphviz_torch.graph import Node
    >>> declared(Node)["scope"].title
    'module'
    """
    found: dict[str, Column] = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        found.update((name, part) for part in get_args(hint)[1:] if isinstance(part, Column))
    return found


@cache
def declared_beside(cls: type, *names: str) -> tuple[tuple[str, Column], ...]:
    """The declarations of all fields but those named, which a format writes in a way of its own.

    >>> from graphviz_torch.graph import Node
    >>> [name for name, _ in declared_beside(Node, "scope", "where", "note", "saved", "seconds")]
    ['module_class', 'attributes', 'placement', 'fingerprints', 'influence', 'reruns']
    """
    return tuple(each for each in declared(cls).items() if each[0] not in names)


def columns_in(cls: type, rows: Iterable[Any]) -> dict[str, Column]:
    """The declarations of the fields that tell something: in some row a number, or texts that vary.

    >>> from graphviz_torch.graph import ModuleRow
    >>> [*columns_in(ModuleRow, [ModuleRow("a", mode="train"), ModuleRow("b", mode="eval")])]
    ['mode']
    >>> columns_in(ModuleRow, [ModuleRow("a", mode="train"), ModuleRow("b", mode="train")])
    {}
    """
    rows = list(rows)
    found: dict[str, Column] = {}
    for name, column in declared(cls).items():
        values = {getattr(row, name) for row in rows}
        if any(map(recorded, values)) and (len(values) > 1 or not isinstance(values.pop(), str)):
            found[name] = column
    return found


@cache
def details(cls: type) -> tuple[tuple[str, Column], ...]:
    """The declarations of what pictures print below a node."""
    return tuple((name, column) for name, column in declared(cls).items() if column.detail)
