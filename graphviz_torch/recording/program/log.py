"""Pass rows about the run to the queries, and collect the events that the queries find.

A row is a plain value, such as a `StepRow`. Listeners append rows while the program runs, and the
queries read them later, in order: when a graph is built, or when the log has many unread rows. A
row is dropped once it has been read, and a row that no query reads is not kept at all. A query
therefore uses neither tensors nor frames, and its test is a list of rows with the expected events.

The event of a hook needs no listener: a query names the hook in `watches`, and reads the event as
an `ObservedRow`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, get_type_hints

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


class Query:
    """A question about the run, which is answered from the rows of the log.

    A method `on_...` reads the rows of one class: the class of its argument `row`. It returns the
    events that are found with the row, or None.
    """

    # True if the query is also asked with gradients="finite".
    light: ClassVar[bool] = False
    # Hooks whose events the query reads. A hook takes the callback for its only event.
    watches: ClassVar[tuple[Callable[[Callable[[Any], None]], Any], ...]] = ()
    # Class of rows -> name of the method that reads them.
    methods: ClassVar[Mapping[type, str]] = {}

    def __init_subclass__(cls) -> None:
        named = {n: method for n, method in vars(cls).items() if n.startswith("on_")}
        cls.methods = {get_type_hints(method)["row"]: n for n, method in named.items()}

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
        self.queries: Sequence[Query] = ()
        # Class of rows -> the methods of the queries that read them.
        self._readers: dict[type, list[Callable[[Any], Iterable[Found] | None]]] = {}
        self._events, self._notes = events, notes
        self._unread: list[tuple[int, Row]] = []  # number of backwards before the row, and the row

    def ask(self, queries: Sequence[Query]) -> None:
        """Let these queries read the rows that are appended from now on.

        Args:
            queries: the queries. Those that read rows of one class read each row in this order.
        """
        self.queries, self._readers = queries, {}
        for query in queries:
            for kind, name in query.methods.items():
                self._readers.setdefault(kind, []).append(getattr(query, name))

    def append(self, row: Row) -> None:
        """Append a row. The queries read it later."""
        if type(row) in self._readers:
            self._unread.append((self._events.backwards, row))
            if len(self._unread) >= _MAX_UNREAD:
                self.read()

    def read(self) -> None:
        """Let the queries read all unread rows, and add the events that they find."""
        unread, self._unread = self._unread, []
        for backwards, row in unread:
            for read in self._readers[type(row)]:
                try:
                    self._note(read(row) or (), backwards)
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
