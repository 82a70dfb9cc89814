"""Telling listeners what a seam sees: one event to all, in their order.

A listener is any object with methods that are named after events (`called`, `module_began`). What
one of them raises reaches neither the others nor the program that is watched. No mode, no subclass
and no compiler sees what a listener reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..dynamo import uncompiled
from .modes import unseen_calls

Tell = tuple[Callable[[Any], object], ...]  # methods that take one event
Miss = Callable[[Exception], object]  # takes what a listener raised


def methods(listeners: Iterable[object], event: str) -> Tell:
    """The methods of this name, in the order of the listeners that have one.

    >>> class Loud:
    ...     def called(self, event):
    ...         return event.upper()
    >>> [tell("sum") for tell in methods([Loud(), object()], "called")]
    ['SUM']
    """
    found = (getattr(listener, event, None) for listener in listeners)
    return tuple(method for method in found if method is not None)


@uncompiled
def tell(listening: Tell, event: object, miss: Miss) -> None:
    """Tell each of an event."""
    with unseen_calls():
        for method in listening:
            try:
                method(event)
            except Exception as error:
                miss(error)
