"""Keep the facts of a recording that belong to no node: events, and notes about missing data.

An event is something that the program did and that no node shows. An example is a gradient that
was cleared too early. Events are kept for one training step. If the same source line causes equal
events, only one is kept, and the number of occurrences is counted over the whole run. A note names
something that could not be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import field
from types import CodeType
from typing import Any, TypeVar

from torch import Tensor

from ...graph import Event, TensorMeta
from ...graph.immutable import NamedTuple, mutable
from ...internals.exceptions import ignore_exceptions, raised_by_signal_handler
from ...internals.frames import CodePosition
from ...internals.tensors.metadata import tensor_meta

Answer = TypeVar("Answer")
_MAX_MISSED = 10  # number of notes about exceptions in a step
_MAX_TEXT = 200  # number of characters of an error message in a note
_EAGER = 'ran without compiled code (compiled="eager"): values and times are those of eager mode'


class RecordingNotes:
    """The notes on a whole recording, such as "not recorded: ...", without duplicates."""

    def __init__(self) -> None:
        self.missed: dict[str, None] = {}  # "not recorded" notes of this step
        self._eager = False

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the notes for the whole run, and then those for this step."""
        return (*((_EAGER,) if self._eager else ()), *self.missed)

    def ran_eager(self) -> None:
        """Add the note that the program runs eagerly, without its compiled code."""
        self._eager = True

    def begin_step(self) -> None:
        """Forget the notes of the last step."""
        self.missed = {}

    def leave_out(self, what: str) -> None:
        """Add the note "not recorded: `what`"."""
        self.missed[f"not recorded: {what}"] = None

    def miss(self, error: Exception) -> None:
        """Add a "not recorded" note for an exception that was raised while recording.

        Raises:
            Exception: `error` itself, if a signal handler of the program raised it, such as one
                that ends the training after a time limit.
        """
        if raised_by_signal_handler(error):
            raise error
        if len(self.missed) < _MAX_MISSED:
            with ignore_exceptions():  # a user's `__str__` may raise any exception
                text = next(iter(str(error).splitlines()), "")[:_MAX_TEXT]
                self.leave_out(f"{type(error).__name__}: {text}")

    def attempt(self, read: Callable[..., Answer], *args: Any) -> Answer | None:
        """Return `read(*args)`; if it raises, add a "not recorded" note and return None."""
        try:
            return read(*args)
        except Exception as error:
            self.miss(error)
            return None


class TensorRecord(NamedTuple):
    """The metadata of a tensor that an event mentions; it keeps no tensor alive."""

    label: str
    tensor: TensorMeta
    number: int | None  # sequence number of the node that created the tensor; None: no node
    leaf: int  # id() of the tensor

    @classmethod
    def create(cls, tensor: Tensor, label: str = "") -> TensorRecord:
        """Create the record of a live tensor."""
        fn = tensor.grad_fn if tensor.requires_grad else None
        number = None if fn is None else int(fn._sequence_nr())
        return cls(label, tensor_meta(tensor), number, id(tensor))


class NodeLine(NamedTuple):
    """A placeholder for the line that created a node; it becomes text when the graph is built."""

    number: int  # sequence number of the node


class UserLine(NamedTuple):
    """A placeholder that becomes the text "train.py:41" when the graph is built."""

    place: CodePosition | None  # None becomes ""


class MethodCall(NamedTuple):
    """A placeholder that becomes the text of the only line that calls a method; "" if unknown."""

    method: str
    owner: str = ""  # name of the variable whose method is called; "" for any variable
    around: tuple[CodeType, ...] = ()  # code objects that are searched in addition
    or_any: bool = False  # True to search the calls of any variable if `owner` has no such call


class VariableLine(NamedTuple):
    """A placeholder that becomes the text of the only line that assigns a variable or attribute."""

    name: str
    around: tuple[CodeType, ...] = ()  # code objects that are searched in addition


class Assignment(NamedTuple):
    """A placeholder that becomes the text of the only line that assigns `x.name` or `x["name"]`."""

    name: str
    around: tuple[CodeType, ...] = ()  # code objects that are searched in addition


Place = CodePosition | MethodCall | None  # position of an event in the program; None: unknown


@mutable
class EventRecord:
    """An event (a fact that a rule may report) with its latest values and number of occurrences."""

    event: Event  # its line and nodes are not set
    place: Place
    first: int  # number of backwards that had started at the first occurrence
    numbers: tuple[int, ...] = ()  # sequence numbers of the event's nodes
    leaves: Collection[int] = ()  # id() of the event's leaves; a set has no order
    latest: dict[str, Any] = field(default_factory=dict)  # fields that differ between occurrences
    times: int = 0  # number of occurrences in the run


_MAX_EARLIER = 10_000  # number of events of earlier steps that are still counted


class Events:
    """The events of a recording."""

    def __init__(self) -> None:
        self.backwards = 0  # number of backwards started in this step
        self._records: dict[tuple[Event, Place], EventRecord] = {}
        # Event and its position -> number of occurrences in earlier steps.
        self._times: dict[tuple[Event, Place], int] = {}

    def begin_backward(self) -> None:
        """Count a backward that starts."""
        self.backwards += 1

    def begin_step(self) -> None:
        """Drop the events of a training step, except their numbers of occurrences."""
        self._times |= {key: record.times for key, record in self._records.items()}
        while len(self._times) > _MAX_EARLIER:
            del self._times[next(iter(self._times))]
        self.backwards, self._records = 0, {}

    def note(
        self,
        event: Event,
        place: Place = None,
        numbers: Iterable[int] = (),
        leaves: Iterable[int] = (),
        since: int | None = None,
        **latest: Any,
    ) -> None:
        """Add an event, or count one more occurrence of an equal event at the same position.

        Args:
            event: the event. Its line and nodes need not be set.
            place: position of the event in the program. A `MethodCall` is searched in the
                bytecode when the graph is built.
            numbers: sequence numbers of the event's nodes.
            leaves: id() of the event's leaves.
            since: number of backwards that had started when the event happened. None means that
                the event happens now.
            latest: values of fields that may differ between occurrences. The values of the latest
                occurrence are kept. In the finished event, a `TensorRecord` becomes an `Operand`,
                and a `NodeLine`, `UserLine`, `MethodCall` or `Assignment` becomes text.
        """
        record = self._records.get((event, place))
        if record is None:
            first = self.backwards if since is None else since
            record = self._records[event, place] = EventRecord(event, place, first)
            record.times = self._times.pop((event, place), 0)
        record.numbers, record.latest = tuple(numbers), latest
        record.leaves = frozenset(leaves) if isinstance(leaves, Set) else tuple(leaves)
        record.times += 1

    def forget(self, *kinds: type[Event]) -> None:
        """Remove this step's events of these classes."""
        self._records = {k: r for k, r in self._records.items() if not isinstance(r.event, kinds)}

    def noted_before(self, backwards: int) -> list[EventRecord]:
        """Return the events that happened before a backward, sorted by class.

        Args:
            backwards: number of the backward in the step, from 1 on.
        """
        seen = [record for record in self._records.values() if record.first <= backwards]
        # Sorted, so that the order of the listeners does not matter.
        return sorted(seen, key=lambda record: type(record.event).__name__)
