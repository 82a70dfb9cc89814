"""One way to change something of PyTorch's while anybody watches, and to put it back afterwards.

Watchers come and go in any order, in any thread; the collector may take one that was forgotten. The
first one that comes installs, the last one that goes removes. A Ctrl-C between two lines of this
leaves nothing: what was begun is undone, or done once more, and so both steps can be done twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from typing_extensions import Self

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
