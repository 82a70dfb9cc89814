"""Pass rows about the run to the queries, and collect the events that the queries find.

A row is a plain value, such as a `StepRow`. Listeners append rows while the program runs, and the
queries read them later, in order: when a graph is built, or when the log has many unread rows. A
row is dropped once it has been read. A query therefore uses neither tensors nor frames, and its
test is a list of rows with the expected events.

The event of a hook needs no listener: a query names the hook in `watches`, and reads the event as
an `ObservedRow`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from ...graph import Event
from .events import Events, Place, RecordingNotes
from .rows import Row

_MAX_UNREAD = 512  # number of rows after which the queries read them


class Found(NamedTuple):
    """An event that a query found. The fields are arguments of `Events.note`."""

    event: Event
    place: Place = None
    numbers: tuple[int, ...] = ()  # sequence numbers of the event's nodes
    leaves: Collection[int] = ()  # id() of the event's leaves; a set has no order
    latest: Mapping[str, Any] = {}  # fields of the event that differ between occurrences


class Query(ABC):
    """A question about the run, which is answered from the rows of the log."""

    # True if the query is also asked with gradients="finite".
    light: ClassVar[bool] = False
    # Hooks whose events the query reads. A hook takes the callback for its only event.
    watches: ClassVar[tuple[Callable[[Callable[[Any], None]], Any], ...]] = ()

    @abstractmethod
    def read(self, row: Row) -> Iterable[Found]:
        """Read the next row, and return the events that are found with it."""

    def events_of_run(self) -> Iterable[Found]:
        """Return the events that describe the run so far. Called when a graph is built."""
        return ()


class Log:
    """The rows of a run that the queries have not read yet.

    Args:
        events: receives the events that the queries find.
        notes: receives a note if a query raises an exception.
    """

    def __init__(self, events: Events, notes: RecordingNotes) -> None:
        self.queries: tuple[Query, ...] = ()  # each row is read by all queries, in this order
        self._events, self._notes = events, notes
        self._unread: list[tuple[int, Row]] = []  # number of backwards before the row, and the row

    def append(self, row: Row) -> None:
        """Append a row. The queries read it later."""
        self._unread.append((self._events.backwards, row))
        if len(self._unread) >= _MAX_UNREAD:
            self.read()

    def read(self) -> None:
        """Let each query read all unread rows, and add the events that it finds."""
        unread, self._unread = self._unread, []
        for query in self.queries:
            read = query.read
            for backwards, row in unread:
                try:
                    self._note(read(row), backwards)
                except Exception as error:
                    self._notes.miss(error)

    def on_graphs_built(self) -> None:
        """Add the events of the unread rows, and those that describe the run so far."""
        self.read()
        for query in self.queries:
            try:
                self._note(query.events_of_run())
            except Exception as error:
                self._notes.miss(error)

    def _note(self, events: Iterable[Found], since: int | None = None) -> None:
        for found in events:
            self._events.note(*found[:-1], since=since, **found.latest)
