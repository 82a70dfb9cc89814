"""Text as the value of a notebook's cell: printed, not quoted."""

from __future__ import annotations

from typing import Any


def print_text(value: object, printer: Any, cycle: bool) -> None:
    """Print `str(value)` where IPython shows a value: assign it to `_repr_pretty_` in a class."""
    printer.text(str(value))


class Text(str):
    r"""A `str` that a notebook prints line by line.

    >>> text = Text("a\nb")
    >>> text == "a\nb", text.splitlines()
    (True, ['a', 'b'])
    """

    __slots__ = ()
    _repr_pretty_ = print_text
