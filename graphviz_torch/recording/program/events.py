"""Keep the facts of a recording that belong to no node: events, and notes about failed reads.

An event is something that the program did and that no node shows, such as a gradient that was
cleared too early. Events are kept for one training step, at most one per event and source line.
The number of times that an event happened is counted over the whole run. A note names something
that is missing in the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ...graph import Event, Operand, TensorMeta
from ...internals.frames import CodePosition
from ...internals.tensors.metadata import tensor_meta

Answer = TypeVar("Answer")
_MAX_MISSED = 10  # notes about failed reads in a step
_MAX_TEXT = 200  # characters of an error message
_EAGER = 'run as written, with no compiled code (compiled="eager"): the numbers are eager\'s'


class RecordingNotes:
    """The notes of a recording as a whole, without duplicates."""

    def __init__(self) -> None:
        self.missed: dict[str, None] = {}  # notes about failed reads in this step
        self._eager = False

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the notes: first those for the whole run, then those for this step."""
        return (*((_EAGER,) if self._eager else ()), *self.missed)

    def ran_eager(self) -> None:
        """Note that the program runs without its compiled code."""
        self._eager = True

    def begin_step(self) -> None:
        """Forget the notes of the last step."""
        self.missed = {}

    def leave_out(self, what: str) -> None:
        """Note that `what` is not recorded."""
        self.missed[f"not recorded: {what}"] = None

    def miss(self, error: Exception) -> None:
        """Add a note about an exception that the recording itself raised and caught."""
        if len(self.missed) < _MAX_MISSED:
            with suppress(Exception):  # the user's __str__ may raise
                text = next(iter(str(error).splitlines()), "")[:_MAX_TEXT]
                self.leave_out(f"{type(error).__name__}: {text}")

    def attempt(self, read: Callable[..., Answer], *args: Any) -> Answer | None:
        """Return `read(*args)`. If it raises, add a "not recorded" note and return None."""
        try:
            return read(*args)
        except Exception as error:
            self.miss(error)
            return None


class TensorRecord(NamedTuple):
    """The plain values of a tensor that an event mentions."""

    label: str
    tensor: TensorMeta
    number: int | None  # sequence number of the node that created it
    leaf: int  # id() of the tensor

    @classmethod
    def create(cls, tensor: Tensor, label: str = "") -> TensorRecord:
        """Create the record of a live tensor."""
        fn = tensor.grad_fn if tensor.requires_grad else None
        number = None if fn is None else int(fn._sequence_nr())
        return cls(label, tensor_meta(tensor), number, id(tensor))


class NodeLine(NamedTuple):
    """A placeholder for the source line that created the node with sequence number `number`."""

    number: int


@dataclass(slots=True)
class EventRecord:
    """An event with the values of its latest occurrence."""

    event: Event  # without its line and nodes
    place: CodePosition | None
    first: int  # backwards started before the first occurrence
    numbers: tuple[int, ...] = ()  # sequence numbers of the nodes concerned
    leaves: tuple[int, ...] = ()  # id() of the leaves concerned
    latest: dict[str, Any] = field(default_factory=dict)  # latest values of changing fields
    times: int = 0  # occurrences in the run


_MAX_EARLIER = 10_000  # events of earlier steps whose number of occurrences is kept


class Events:
    """The events of a recording."""

    def __init__(self) -> None:
        self.backwards = 0  # number of backwards started
        self._records: dict[tuple[Event, CodePosition | None], EventRecord] = {}
        # Number of occurrences in earlier steps.
        self._times: dict[tuple[Event, CodePosition | None], int] = {}

    def begin_backward(self) -> None:
        """Count a backward that starts."""
        self.backwards += 1

    def begin_step(self) -> None:
        """Drop the events at the end of a training step, and keep how often each occurred."""
        self._times |= {key: record.times for key, record in self._records.items()}
        while len(self._times) > _MAX_EARLIER:
            del self._times[next(iter(self._times))]
        self.backwards, self._records = 0, {}

    def note(
        self,
        event: Event,
        place: CodePosition | None = None,
        numbers: Iterable[int] = (),
        leaves: Iterable[int] = (),
        since: int | None = None,
        **latest: Any,
    ) -> None:
        """Add an event, or count one more occurrence of an equal event at the same position.

        Args:
            event: the event without its line and nodes.
            place: position of the event in the program.
            numbers: sequence numbers of the nodes concerned.
            leaves: id() of the leaves concerned.
            since: number of backwards that had started when the event happened; None: it happens
                now.
            latest: fields that change between occurrences; the latest values are kept. In the
                finished event a `TensorRecord` becomes an `Operand`, and a `NodeLine` becomes text.
        """
        record = self._records.get((event, place))
        if record is None:
            first = self.backwards if since is None else since
            record = self._records[event, place] = EventRecord(event, place, first)
            record.times = self._times.pop((event, place), 0)
        record.numbers, record.leaves, record.latest = tuple(numbers), tuple(leaves), latest
        record.times += 1

    def forget(self, *kinds: type[Event]) -> None:
        """Remove this step's events of these classes."""
        self._records = {k: r for k, r in self._records.items() if not isinstance(r.event, kinds)}

    def noted_before(
        self,
        backwards: int,
        node: Callable[[int], int | None],
        leaf: Callable[[int], int | None],
        line: Callable[[CodePosition | None], str],
        made: Callable[[int], str],
    ) -> tuple[Event, ...]:
        """Return the events that concern one backward's graph, as plain values sorted by class.

        Args:
            backwards: number of the backward in the step, from 1 on; later events are left out.
            node: returns a node's id in the graph, given its sequence number, or None.
            leaf: returns the id of a leaf's node, given the leaf's id(), or None.
            line: formats a position as text.
            made: returns the source line that created the node with a sequence number.
        """

        def plain(value: Any) -> Any:
            if isinstance(value, NodeLine):
                return made(value.number)
            if not isinstance(value, TensorRecord):
                return value
            where = "" if value.number is None else made(value.number)
            number = leaf(value.leaf) if value.number is None else node(value.number)
            return Operand(value.label, value.tensor, where, number)

        found: list[Event] = []
        seen = [record for record in self._records.values() if record.first <= backwards]
        # Sorted, because listeners add their events in arbitrary order.
        for record in sorted(seen, key=lambda record: type(record.event).__name__):
            ids = (*map(node, record.numbers), *map(leaf, record.leaves))
            latest = {name: _map_nested(plain, value) for name, value in record.latest.items()}
            latest.setdefault("where", line(record.place))
            nodes = tuple([i for i in ids if i is not None])
            found.append(replace(record.event, nodes=nodes, times=record.times, **latest))
        return tuple(found)


def _map_nested(plain: Callable[[Any], Any], value: Any) -> Any:
    """Apply `plain` to a value, or to each value in nested tuples.

    It is a function of its own, since a closure that calls itself is a reference cycle.
    """
    if type(value) is tuple:
        return tuple([_map_nested(plain, part) for part in value])
    return plain(value)
