"""Record for each node the tensors that it saved, and how often its checkpoint ran it again."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from ...graph import SavedTensor
from ...graph.immutable import NamedTuple
from ...graph.nodes import CHECKPOINTED
from ...internals.tensors.metadata import HAS_SAVED_TENSOR_DATA, MISSING_SAVED_TENSORS
from ..backward import Backward
from ..listener import BackwardEnded
from ..live import LiveGraph
from ..program import Program
from ..program.log import Query, RowsOf
from ..program.rows import TrainingStepRow
from ..recorder import Columns


class SavedTensorsRow(NamedTuple):
    """The saved tensors of a graph, as read by memory.py."""

    graph: int  # index of the graph
    saved: Mapping[int, tuple[SavedTensor, ...]]  # by node id
    notes: Mapping[int, str]  # by node id


def saved_tensors(live: LiveGraph, program: Program) -> Iterable[SavedTensorsRow]:
    """Return a row of the saved tensors of a graph, which backward may free."""
    if not HAS_SAVED_TENSOR_DATA:
        program.remarks.leave_out(MISSING_SAVED_TENSORS)
        return ()
    return (SavedTensorsRow(live.position, live.memory.rows, live.memory.notes),)


class SavedTensors(Query):
    """Record each node's saved tensors and their bytes."""

    needs = ("memory",)
    rows_of: ClassVar[RowsOf] = {"on_graph_read": saved_tensors}

    def __init__(self) -> None:
        self._rows: dict[int, SavedTensorsRow] = {}  # by index of the graph

    def on_saved_tensors(self, row: SavedTensorsRow) -> None:
        self._rows[row.graph] = row

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._rows = {}

    def node_columns(self, backward: Backward) -> Columns:
        row = self._rows.get(backward.position)
        return {"saved": {}} if row is None else {"saved": row.saved, "note": row.notes}


_NOTE_SEGMENT = f"{CHECKPOINTED}: backward runs the forward of this segment again"
_NOTE_RERAN = f"{CHECKPOINTED}: its forward ran again in backward"


class Segment(NamedTuple):
    """A segment of a graph that `torch.utils.checkpoint` computes again in backward."""

    nodes: frozenset[int]  # ids of the segment's nodes that save tensors
    start: int  # backward repeats the operations of nodes with start <= sequence number < stop
    stop: int
    selects: bool  # True if the segment has a selective-checkpoint policy
    times: int | None  # number of reruns; None before backward


class SegmentsRow(NamedTuple):
    """The checkpointed segments of a graph, before and after its backward."""

    graph: int  # index of the graph
    segments: Sequence[Segment]


def segments(live: LiveGraph, program: Program) -> Iterable[SegmentsRow]:
    """Return a row of the checkpointed segments of a graph before backward, if there are any."""
    parts = [Segment(p.nodes, p.start, p.stop, p.selects, None) for p in live.checkpoints.parts]
    return (SegmentsRow(live.position, parts),) if parts else ()


def rerun_segments(event: BackwardEnded, program: Program) -> Iterable[SegmentsRow]:
    """Return a row of the segments after backward, before the next backward may run them again."""
    known = event.live.checkpoints.parts
    parts = [Segment(p.nodes, p.start, p.stop, p.selects, p.times()) for p in known]
    return (SegmentsRow(event.live.position, parts),) if parts else ()


class Reruns(Query):
    """Count how often backward repeated the operations of checkpointed nodes."""

    needs = ()
    rows_of: ClassVar[RowsOf] = {"on_graph_read": segments, "on_backward_end": rerun_segments}

    def __init__(self) -> None:
        self._segments: dict[int, Sequence[Segment]] = {}  # by index of the graph

    def on_segments(self, row: SegmentsRow) -> None:
        self._segments[row.graph] = row.segments

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._segments = {}

    def node_columns(self, backward: Backward) -> Columns:
        parts = self._segments.get(backward.position)
        if parts is None:
            return {}
        numbers = sorted((number, node) for node, number in enumerate(backward.numbers))
        reruns = Counter({node: 0 for part in parts for node in part.nodes})
        unknown: set[int] = set()
        for part in parts:
            if part.times is None:
                return {"note": {node: _NOTE_SEGMENT for part in parts for node in part.nodes}}
            span = (bisect_left(numbers, (end,)) for end in (part.start, part.stop))
            inside = [node for _, node in numbers[slice(*span)]]
            reruns.update(inside * part.times)
            if part.selects:
                unknown.update(inside, part.nodes)
        known = {node: count for node, count in reruns.items() if node not in unknown}
        notes = {
            n: _NOTE_RERAN if known.get(n) else CHECKPOINTED for part in parts for n in part.nodes
        }
        return {"note": notes, "reruns": known}
