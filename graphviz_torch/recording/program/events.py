"""What a recording says beside its nodes: events, and what it could not read.

An event is what the program does that no node shows: it is noted once for each line. A step of a
run has those that happened in it; how often they did is counted from the run's begin. A remark is
of the recording as a whole.
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
_MISSED = 10  # reasons
_TEXT = 200  # characters of one
_EAGER = 'run as written, with no compiled code (compiled="eager"): the numbers are eager\'s'


class Remarks:
    """The remarks of a recording, each once."""

    def __init__(self) -> None:
        self.missed: dict[str, None] = {}  # what could not be read of this step
        self._eager = False

    @property
    def lines(self) -> tuple[str, ...]:
        """They, what holds for every step first."""
        return (*((_EAGER,) if self._eager else ()), *self.missed)

    def ran_eager(self) -> None:
        """Say that the program runs without its compiled code."""
        self._eager = True

    def begin_step(self) -> None:
        """Forget what the last one said."""
        self.missed = {}

    def leave_out(self, what: str) -> None:
        """Say that something is not recorded, in words that follow "not recorded:"."""
        self.missed[f"not recorded: {what}"] = None

    def miss(self, error: Exception) -> None:
        """Something of the program could not be read: it is not recorded, and runs on."""
        if len(self.missed) < _MISSED:
            with suppress(Exception):  # an error of the user's may refuse to be written
                text = next(iter(str(error).splitlines()), "")[:_TEXT]
                self.leave_out(f"{type(error).__name__}: {text}")

    def attempt(self, read: Callable[..., Answer], *args: Any) -> Answer | None:
        """The answer of a reading of ours; None if it fails, which is noted and ends nothing."""
        try:
            return read(*args)
        except Exception as error:
            self.miss(error)
            return None


class TensorRecord(NamedTuple):
    """A tensor of an event. It holds nothing of the program."""

    label: str
    tensor: TensorMeta
    number: int | None  # sequence number of the node that made it
    leaf: int  # id() of the tensor

    @classmethod
    def of(cls, tensor: Tensor, label: str = "") -> TensorRecord:
        """Of a live tensor."""
        fn = tensor.grad_fn if tensor.requires_grad else None
        number = None if fn is None else int(fn._sequence_nr())
        return cls(label, tensor_meta(tensor), number, id(tensor))


class NodeLine(NamedTuple):
    """The line that made a node, by its sequence number."""

    number: int


@dataclass(slots=True)
class EventRecord:
    """An event as it was seen last."""

    event: Event  # without its line and nodes
    place: CodePosition | None
    first: int  # how many backwards had begun when it was seen first
    numbers: tuple[int, ...] = ()  # sequence numbers of the nodes that it is about
    leaves: tuple[int, ...] = ()  # id() of the leaves that it is about
    latest: dict[str, Any] = field(default_factory=dict)  # fields of `event` as of the last time
    times: int = 0  # in the run


_REMEMBERED = 10_000  # events of earlier steps whose number is known


class Events:
    """The events of a recording."""

    def __init__(self) -> None:
        self.backwards = 0  # that have begun
        self._records: dict[tuple[Event, CodePosition | None], EventRecord] = {}
        self._times: dict[tuple[Event, CodePosition | None], int] = {}  # in earlier steps

    def begin_backward(self) -> None:
        """Backward is about to run."""
        self.backwards += 1

    def begin_step(self) -> None:
        """What was seen belongs to a step that is over."""
        self._times |= {key: record.times for key, record in self._records.items()}
        while len(self._times) > _REMEMBERED:
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
        """Note an event; one that was seen before is counted.

        Args:
            event: without its line and nodes; equal ones of one place are one.
            place: that it is at.
            numbers, leaves: of the nodes that it is about, as of the last time.
            since: how many backwards had begun when it happened; None: as many as now.
            latest: fields that may differ from time to time; they have their last values. A
                `TensorRecord` becomes an Operand, a `NodeLine` a text.
        """
        record = self._records.get((event, place))
        if record is None:
            first = self.backwards if since is None else since
            record = self._records[event, place] = EventRecord(event, place, first)
            record.times = self._times.pop((event, place), 0)
        record.numbers, record.leaves, record.latest = tuple(numbers), tuple(leaves), latest
        record.times += 1

    def forget(self, *kinds: type[Event]) -> None:
        """Take back what was noted of these kinds in this step."""
        self._records = {k: r for k, r in self._records.items() if not isinstance(r.event, kinds)}

    def until(
        self,
        backwards: int,
        node: Callable[[int], int | None],
        leaf: Callable[[int], int | None],
        line: Callable[[CodePosition | None], str],
        made: Callable[[int], str],
    ) -> tuple[Event, ...]:
        """Those that were seen before so many backwards had begun, as plain values: by kind.

        Args:
            backwards: a number.
            node: the id of a node by its sequence number, None where the graph does not have it.
            leaf: the id of a leaf's node by the id() of the leaf.
            line: the line of a place.
            made: the line that made the node with a sequence number.
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
        # Of a moment in which several listeners note something their order tells nothing.
        for record in sorted(seen, key=lambda record: type(record.event).__name__):
            ids = (*map(node, record.numbers), *map(leaf, record.leaves))
            latest = {name: _each(plain, value) for name, value in record.latest.items()}
            latest.setdefault("where", line(record.place))
            nodes = tuple([i for i in ids if i is not None])
            found.append(replace(record.event, nodes=nodes, times=record.times, **latest))
        return tuple(found)


def _each(plain: Callable[[Any], Any], value: Any) -> Any:
    """A value, or those in tuples. Not a closure: one that calls itself is a cycle of garbage."""
    if type(value) is tuple:
        return tuple([_each(plain, part) for part in value])
    return plain(value)
