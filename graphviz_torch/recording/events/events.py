"""What the program does that no node shows: each kind of it once for each line that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ...graph import Event, EventKind, Operand, TensorMeta
from ...internals.tensors.metadata import tensor_meta
from ..source_lines import Place


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


@dataclass(slots=True)
class EventRecord:
    """An event as it was seen last."""

    kind: EventKind
    place: Place | None
    label: str
    operation: str
    detail: str
    first: int  # how many backwards had begun when it was seen first
    operands: tuple[TensorRecord, ...] = ()
    numbers: tuple[int, ...] = ()  # sequence numbers of the nodes that it is about
    leaves: tuple[int, ...] = ()  # id() of the leaves that it is about
    times: int = 0


class Events:
    """The events of a recording."""

    def __init__(self) -> None:
        self._backwards = 0  # that have begun
        self._records: dict[tuple[object, ...], EventRecord] = {}

    def begin_backward(self) -> None:
        """Backward is about to run."""
        self._backwards += 1

    def note(
        self,
        kind: EventKind,
        place: Place | None = None,
        label: str = "",
        operation: str = "",
        detail: str = "",
        operands: Iterable[TensorRecord] = (),
        numbers: Iterable[int] = (),
        leaves: Iterable[int] = (),
    ) -> None:
        """Note an event; one that was seen before is counted, and its tensors are those of now."""
        key = kind, place, label, operation, detail
        event = self._records.get(key)
        if event is None:
            event = self._records[key] = EventRecord(*key, self._backwards)
        event.operands, event.numbers = tuple(operands), tuple(numbers)
        event.leaves = tuple(leaves)
        event.times += 1

    def until(
        self,
        backwards: int,
        node: Callable[[int], int | None],
        leaf: Callable[[int], int | None],
        line: Callable[[Place | None], str],
        made: Callable[[int], str],
    ) -> tuple[Event, ...]:
        """Those that were seen before so many backwards had begun, as plain values.

        Args:
            backwards: a number.
            node: the id of a node by its sequence number, None where the graph does not have it.
            leaf: the id of a leaf's node by the id() of the leaf.
            line: the line of a place.
            made: the line that made the node with a sequence number.
        """
        return tuple(
            Event(
                event.kind,
                line(event.place),
                event.label,
                event.operation,
                event.detail,
                tuple(
                    Operand(
                        part.label,
                        part.tensor,
                        "" if part.number is None else made(part.number),
                        leaf(part.leaf) if part.number is None else node(part.number),
                    )
                    for part in event.operands
                ),
                tuple(
                    i
                    for i in (*map(node, event.numbers), *map(leaf, event.leaves))
                    if i is not None
                ),
                event.times,
            )
            for event in self._records.values()
            if event.first <= backwards
        )
