"""Strings that a notebook shows as plain text, without quotes."""

from __future__ import annotations

from typing import Any


def print_text(value: object, printer: Any, cycle: bool) -> None:
    """Print `str(value)` in IPython: assign this function to `_repr_pretty_` in a class."""
    printer.text(str(value))


class Text(str):
    r"""A `str` that a notebook prints line by line.

    >>> text = Text("a\nb")
    >>> text == "a\nb", text.splitlines()
    (True, ['a', 'b'])
    """

    __slots__ = ()
    _repr_pretty_ = print_text
