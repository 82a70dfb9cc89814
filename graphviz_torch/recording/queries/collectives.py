"""Find collectives that change a tensor in place in the middle of a graph, unseen by autograd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...findings.rules.ranks.in_place import CollectiveInGraph
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition
from ..program.log import Found, Query
from ..program.rows import GraphRow, TrainingStepRow

_MAX_TENSORS = 256


class CollectiveRow(NamedTuple):
    """A collective that has changed tensors in place."""

    kind: str
    place: CodePosition | None
    changed: Mapping[int, str]  # sequence number of a tensor's node -> label of the tensor


class CollectivesInGraph(Query):
    """Find collectives that changed a result through which backward then ran."""

    needs = ()

    def __init__(self) -> None:
        self._changed: dict[int, CollectiveRow] = {}  # by sequence number of the tensor's node

    def on_collective(self, row: CollectiveRow) -> None:
        if len(self._changed) < _MAX_TENSORS:
            self._changed |= dict.fromkeys(row.changed, row)

    def on_graph(self, row: GraphRow) -> Iterator[Found]:
        inner = {*row.numbers} - {*row.roots} if self._changed else set()
        for number in inner & self._changed.keys():
            made = self._changed.pop(number)
            event = CollectiveInGraph(kind=made.kind, label=made.changed[number])
            yield Found(event, made.place, (number,))

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._changed = {}
