"""Pass rows about the run to the queries, and collect the events that the queries find.

A row is a plain value, such as a `StepRow`. Listeners append rows while the program runs, and the
queries read them later, in order: when a graph is built, or when the log has many unread rows. A
row is dropped once it has been read, and a row that no query reads is not kept at all. A query
therefore uses neither tensors nor frames, and its test is a list of rows with the expected events.

The event of a hook needs no listener: a query names the hook in `watches`, and reads the event as
an `ObservedRow`. A call, or another event with tensors, needs no listener either: a query names a
function in `rows_of` that returns the rows of the event. Numbers of a tensor's values are a `Probe`
of the row. Such a row is read when a graph is built, after the other rows, so that the program does
not wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

from ...graph import Event
from ...graph.immutable import NamedTuple
from ...internals.probes import Probe, fetch
from ..recorder import Recorder
from .events import Events, Place, RecordingNotes
from .rows import Row, TrainingStepRow

_MAX_UNREAD = 512  # number of rows after which the queries read them
_MAX_KEYS = 64  # number of keys of each class of rows


# Name of an event, as in `Listener` -> function of the event and the program that returns rows.
RowsOf = Mapping[str, Callable[[Any, Any], Iterable[Row]]]


class Found(NamedTuple):
    """An event that a query found. The fields are arguments of `Events.note`.

    It is also a row: a function in `rows_of` returns it if the event needs no other row.
    """

    event: Event
    place: Place = None
    numbers: tuple[int, ...] = ()  # sequence numbers of the event's nodes
    leaves: Collection[int] = ()  # id() of the event's leaves; a set has no order
    latest: Mapping[str, Any] = {}  # fields of the event that differ between occurrences


class Query(Recorder):
    """A question about the run, which is answered from the rows of the log.

    A method `on_...` reads the rows of one class: the class of its argument `row`. It returns the
    events that are found with the row, or None. Columns are asked after all rows without probes.
    """

    # Hooks whose events the query reads. A hook takes the callback for its only event.
    watches: ClassVar[tuple[Callable[[Callable[[Any], None]], Any], ...]] = ()
    # Functions that return the rows of events.
    rows_of: ClassVar[RowsOf] = {}
    # "on_call_end" gets the calls of these functions; None: all calls.
    functions: ClassVar[Container[Any] | None] = ()
    # True if a call that created a node is of interest only if a tensor of it requires no gradient.
    needs_constant: ClassVar[bool] = False
    # True if `rows_of` also gets the events after the recorded steps.
    sees_later_steps: ClassVar[bool] = False
    # Class of rows -> name of the method that reads them.
    methods: ClassVar[Mapping[type, str]] = {}

    def __init_subclass__(cls) -> None:
        named = {n: method for n, method in vars(cls).items() if n.startswith("on_")}
        cls.methods = {
            method.__globals__[method.__annotations__["row"]]: n for n, method in named.items()
        }

    def read(self, row: Row) -> Iterable[Found]:
        """Return the events that are found with a row. The log calls the methods directly."""
        if isinstance(row, Found):
            return (row,)
        name = self.methods.get(type(row))
        return () if name is None else getattr(self, name)(row) or ()

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
        self._with_probes: list[Row] = []  # unread rows that contain a `Probe`
        # By class of rows: keys of the rows in this training step, and in the run, see `admits`.
        self._keys_of_step: dict[type, set[Hashable]] = {}
        self._keys_of_run: dict[type, set[Hashable]] = {}

    def ask(self, queries: Sequence[Query]) -> None:
        """Let these queries read the rows that are appended from now on.

        Args:
            queries: the queries. Those that read rows of one class read each row in this order.
        """
        self.queries, self._readers = queries, {Found: [lambda found: (found,)]}
        for query in queries:
            for kind, name in query.methods.items():
                self._readers.setdefault(kind, []).append(getattr(query, name))

    def append(self, row: Row) -> None:
        """Append a row. The queries read it later."""
        kind = type(row)
        if kind not in self._readers:
            return
        if _has_probe(kind):
            if len(self._with_probes) >= _MAX_UNREAD:
                self._read_known_probes()
            if len(self._with_probes) < _MAX_UNREAD:
                self._with_probes.append(row)
            return
        self._unread.append((self._events.backwards, row))
        if len(self._unread) >= _MAX_UNREAD:
            self.read()

    def admits(
        self, kind: type, key: Hashable = None, *, most: int = _MAX_KEYS, in_run: bool = False
    ) -> bool:
        """Return True if a row that takes time may be created. It counts the row.

        Args:
            kind: the class of the row.
            key: identifies the row, such as its line. The result is True once for each key; None
                for any number of rows.
            most: number of rows, after which the result is False.
            in_run: True if the rows are counted in the whole run, False if in a training step.
        """
        keys = (self._keys_of_run if in_run else self._keys_of_step).setdefault(kind, set())
        key = len(keys) if key is None else key
        if key in keys or len(keys) >= most:
            return False
        keys.add(key)
        return True

    def read(self) -> None:
        """Let the queries read the unread rows without probes, and add the events they find."""
        unread, self._unread = self._unread, []
        for backwards, row in unread:
            self._read(row, backwards)

    def end_step(self) -> None:
        """End a training step: let the queries read its rows, and drop those with probes."""
        self.append(TrainingStepRow())
        self.read()
        self._with_probes, self._keys_of_step = [], {}

    def on_graphs_built(self) -> None:
        """Add the events of the unread rows, and those that describe the run so far."""
        self.read()
        rows, self._with_probes, self._keys_of_step = self._with_probes, [], {}
        fetch([value for row in rows for value in row if type(value) is Probe])
        for row in rows:
            self._read(row, None)
        for query in self.queries:
            try:
                self._note(query.events_of_run())
            except Exception as error:
                self._notes.miss(error)

    def _read_known_probes(self) -> None:
        """Let the queries read the rows whose numbers were computed on the CPU."""
        rows, self._with_probes = self._with_probes, []
        for row in rows:
            if all(each.values is not None for each in row if type(each) is Probe):
                self._read(row, None)
            else:
                self._with_probes.append(row)

    def _read(self, row: Row, backwards: int | None) -> None:
        for read in self._readers[type(row)]:
            try:
                self._note(read(row) or (), backwards)
            except Exception as error:
                self._notes.miss(error)

    def _note(self, events: Iterable[Found], since: int | None = None) -> None:
        for found in events:
            self._events.note(*found[:-1], since=since, **found.latest)


@cache
def _has_probe(kind: type) -> bool:
    """Return True if a class of rows has a field of class `Probe`, or `Probe | None`."""
    return any(Probe in (hint, *get_args(hint)) for hint in get_type_hints(kind).values())
