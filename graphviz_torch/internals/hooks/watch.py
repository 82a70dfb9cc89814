"""Install a patch while it is needed, and notify listeners of events: the base of all watches.

An `Installation` patches something in PyTorch while it has watchers, and restores it afterwards. A
`Replacement` is an installation that replaces functions.

Watchers may be added and removed in any order and from any thread, also by the garbage collector.
The patch is installed for the first watcher, and removed after the last one. Installing and
removing can be repeated, as is done after an interrupt.

`notify` passes an event to all listeners in order. A listener is any object with methods that have
the names of events, such as `on_call_end` and `on_module_start`. An exception in a listener reaches
neither the other listeners nor the user's program. Reads by a listener are hidden from modes,
subclasses and compilers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from typing_extensions import Self

from ...graph.immutable import NamedTuple
from ..dynamo import not_compiled
from .modes import unseen_calls

Watcher = TypeVar("Watcher")


class Installation(Generic[Watcher]):
    """A patch that is installed while it has watchers.

    Args:
        install: installs the patch, unless it is installed; called when a watcher is added.
        remove: removes the patch, if it is installed; called when no watcher is left.

    >>> switched = []
    >>> light = Installation[str](lambda: switched.append("on"), lambda: switched.append("off"))
    >>> light.add("a"), light.add("b"), light.discard("a"), light.discard("b")
    (None, None, None, None)
    >>> switched
    ['on', 'on', 'off']
    """

    def __init__(self, install: Callable[[], object], remove: Callable[[], object]) -> None:
        self.watchers: tuple[Watcher, ...] = ()  # replaced, never mutated: reading it needs no lock
        self._install = install
        self._remove = remove
        # The lock is reentrant, because the garbage collector may remove a watcher while this
        # thread has the lock.
        self._lock = threading.RLock()

    def add(self, watcher: Watcher, *, first: bool = False) -> None:
        """Add a watcher, before the others if `first`. If installing raises, none is added."""
        with self._lock:
            try:
                before, after = ((), self.watchers) if first else (self.watchers, ())
                self.watchers = (*before, watcher, *after)
                self._install()
            except BaseException:
                self._take(watcher)
                raise

    def discard(self, watcher: Watcher) -> None:
        """Remove a watcher, if it was added."""
        with self._lock:
            try:
                self._take(watcher)
            except BaseException:  # an interrupt, after which the removal is repeated
                self._take(watcher)
                raise

    def refresh(self) -> None:
        """Install the patch again if there are watchers, so that it covers new objects as well."""
        with self._lock:
            if self.watchers:
                self._install()

    def suspend(self) -> None:
        """Remove the patch until `refresh` or until a watcher is added."""
        with self._lock:
            self._remove()

    def _take(self, watcher: Watcher) -> None:
        self.watchers = tuple([other for other in self.watchers if other is not watcher])
        if not self.watchers:
            self._remove()


# An attribute to replace: its owner (a module or a class), its name, and a function that returns
# the replacement, given the original. The original is None if the owner has no such attribute.
Row = tuple[Any, str, Callable[[Any], Any]]
_INHERITED: Any = object()  # used as the original of an attribute that the owner inherits


class _Replaced(NamedTuple):
    """An attribute that has been replaced."""

    owner: Any
    name: str
    original: Any
    replacement: Any

    def restore(self) -> bool:
        """Restore the original. Return False if other code has replaced our function since."""
        current = vars(self.owner).get(self.name, _INHERITED)
        if current is self.replacement:
            if self.original is _INHERITED:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.original)
        return current is self.replacement or current is self.original


class Replacement(Installation[Watcher]):
    """An installation that replaces functions while it has watchers.

    If other code replaces one of our functions, its replacement is kept, and calls our function.
    Without watchers, our function only calls the original. It is removed once it is visible again.

    Args:
        rows: returns the attributes to replace; called at each installation.
        install: patches something else, after the attributes are replaced.
        remove: undoes `install`, before the attributes are restored.

    >>> import math
    >>> doubled = lambda original: lambda x: 2 * original(x)
    >>> roots = Replacement[str](lambda: [(math, "sqrt", doubled)])
    >>> roots.add("a"), math.sqrt(9), roots.discard("a"), math.sqrt(9)
    (None, 6.0, None, 3.0)
    """

    _hidden: ClassVar[list[_Replaced]] = []  # our functions that other code has replaced
    _table_lock = threading.RLock()  # guards `_hidden` and the attributes

    def __init__(
        self,
        rows: Callable[[], Iterable[Row]],
        install: Callable[[], object] = lambda: None,
        remove: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(self.replace, self.restore)
        self._rows, self._also_install, self._also_remove = rows, install, remove
        self._replaced: list[_Replaced] = []

    def replace(self) -> None:
        """Replace each attribute that is not replaced already."""
        with self._table_lock:
            self._restore_visible()
            ours = {id(row.replacement) for row in self._replaced}
            for owner, name, wrap in self._rows():
                original = vars(owner).get(name, _INHERITED)
                if id(original) in ours:
                    continue
                new = wrap(getattr(owner, name, None))
                new = staticmethod(new) if isinstance(original, staticmethod) else new
                # The original is stored before the attribute is set, so that an interrupt does not
                # lose it.
                self._replaced.append(_Replaced(owner, name, original, new))
                setattr(owner, name, new)
        self._also_install()

    def restore(self) -> None:
        """Restore each original, unless other code has replaced our function since."""
        self._also_remove()
        with self._table_lock:
            self._hidden.extend(self._replaced)
            self._replaced = []
            self._restore_visible()

    def _restore_visible(self) -> None:
        """Restore each original whose replacement is still in its place.

        This is repeated, because a restored function may itself be one of our replacements.
        """
        before = -1
        while before != len(self._hidden):
            before = len(self._hidden)
            self._hidden[:] = [row for row in self._hidden if not row.restore()]


class Watch:
    """Base class of watches, active from `open()` to `close()` or within a `with` block."""

    installation: Installation[Any]
    first = False  # True to be notified before the watches already open
    thread = 0  # ident of the thread that opened the watch

    def open(self) -> None:
        """Start watching; `thread` becomes the calling thread."""
        self.thread = threading.get_ident()
        self.installation.add(self, first=self.first)

    def close(self) -> None:
        """Stop watching, if the watch is open."""
        self.installation.discard(self)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Callbacks = tuple[Callable[[Any], object], ...]  # methods that take one event
OnError = Callable[[Exception], object]  # called with an exception of a listener


def listener_methods(listeners: Iterable[object], event: str) -> Callbacks:
    """Return the methods named `event` of those listeners that have one, in order.

    >>> class Loud:
    ...     def on_call_end(self, event):
    ...         return event.upper()
    >>> [notify("sum") for notify in listener_methods([Loud(), object()], "on_call_end")]
    ['SUM']
    """
    found = (getattr(listener, event, None) for listener in listeners)
    # The tuple is made from a list. A tuple made from a generator is built in steps, and fails if
    # another thread calls `gc.get_objects` between two steps.
    return tuple([method for method in found if method is not None])


@not_compiled
def notify(listening: Callbacks, event: object, miss: OnError) -> None:
    """Call each method with the event, and `miss` with each exception that a method raises.

    Args:
        listening: the methods.
        event: the event.
        miss: handles an exception.
    """
    with unseen_calls():
        for method in listening:
            try:
                method(event)
            except Exception as error:
                miss(error)
