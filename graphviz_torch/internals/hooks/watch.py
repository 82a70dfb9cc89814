"""What all seams have in common: to be there while anybody watches, and to tell listeners.

An `Installation` changes something of PyTorch's while anybody watches, and puts it back. Watchers
come and go in any order, in any thread; the collector may take one that was forgotten. The first
one that comes installs, the last one that goes removes. A Ctrl-C between two lines of this leaves
nothing: what was begun is undone, or done once more, and so both steps can be done twice.

`tell` hands an event to all listeners, in their order. A listener is any object with methods that
are named after events (`called`, `module_began`). What one of them raises reaches neither the
others nor the program that is watched. No mode, no subclass and no compiler sees what a listener
reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from typing_extensions import Self

from ..dynamo import uncompiled
from .modes import unseen_calls

Watcher = TypeVar("Watcher")


class Installation(Generic[Watcher]):
    """Something that is installed while it has watchers.

    Args:
        install: called when a watcher comes; does nothing where all is there already.
        remove: called when none is left; does nothing where nothing is there any more.

    >>> switched = []
    >>> light = Installation[str](lambda: switched.append("on"), lambda: switched.append("off"))
    >>> light.add("a"), light.add("b"), light.discard("a"), light.discard("b")
    (None, None, None, None)
    >>> switched
    ['on', 'on', 'off']
    """

    def __init__(self, install: Callable[[], object], remove: Callable[[], object]) -> None:
        self.watchers: tuple[Watcher, ...] = ()  # never changed in place: read it without a lock
        self._install = install
        self._remove = remove
        # The collector may end a forgotten watcher while this thread holds the lock.
        self._lock = threading.RLock()

    def add(self, watcher: Watcher, *, first: bool = False) -> None:
        """A watcher comes, and is told last, or first. If installing fails, it has not come."""
        with self._lock:
            try:
                before, after = ((), self.watchers) if first else (self.watchers, ())
                self.watchers = (*before, watcher, *after)
                self._install()
            except BaseException:
                self._take(watcher)
                raise

    def discard(self, watcher: Watcher) -> None:
        """A watcher goes; one that is not there may."""
        with self._lock:
            try:
                self._take(watcher)
            except BaseException:  # a Ctrl-C
                self._take(watcher)
                raise

    def refresh(self) -> None:
        """Install once more, if anybody watches: what is to be installed has changed."""
        with self._lock:
            if self.watchers:
                self._install()

    def suspend(self) -> None:
        """Remove it, whoever watches, until it is refreshed or another one comes."""
        with self._lock:
            self._remove()

    def _take(self, watcher: Watcher) -> None:
        self.watchers = tuple(other for other in self.watchers if other is not watcher)
        if not self.watchers:
            self._remove()


class Watch:
    """Somebody who watches what its class is for, from `open()` to `close()`, or in a `with`."""

    installation: ClassVar[Installation[Any]]
    first = False  # is it told before those that are there
    thread = 0  # that opened it

    def open(self) -> None:
        """Watch from now on."""
        self.thread = threading.get_ident()
        self.installation.add(self, first=self.first)

    def close(self) -> None:
        """Watch no more, if it does."""
        self.installation.discard(self)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
