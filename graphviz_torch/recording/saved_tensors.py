"""Record for each node the tensors that it saved, and how often its checkpoint ran it again."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from ..graph.nodes import CHECKPOINTED
from ..internals.tensors.saved_tensors import HAS_SAVED_TENSOR_DATA, MISSING_SAVED_TENSORS
from .backward import Backward
from .listener import BackwardEnded, Columns, Listener
from .live import LiveGraph
from .memory import Checkpoint
from .program import Program


class SavedTensors(Listener):
    """Listener that records each node's saved tensors and their bytes, as read by memory.py."""

    needs = ("memory",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._columns: dict[int, Columns] = {}  # by index of the graph

    def on_graph_read(self, live: LiveGraph) -> None:
        """Read the saved tensors before backward frees them."""
        if not HAS_SAVED_TENSOR_DATA:
            self.program.remarks.leave_out(MISSING_SAVED_TENSORS)
            return
        self._columns[live.position] = {"saved": live.memory.rows, "note": live.memory.notes}

    def on_step_end(self, event: None) -> None:
        self._columns = {}

    def node_columns(self, backward: Backward) -> Columns:
        return self._columns.get(backward.position, {"saved": {}})


_NOTE_SEGMENT = f"{CHECKPOINTED}: backward runs the forward of this segment again"
_NOTE_RERAN = f"{CHECKPOINTED}: its forward ran again in backward"


class Reruns(Listener):
    """Listener that counts how often backward repeated the operations of checkpointed nodes."""

    needs = ()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Index of a graph -> its checkpointed segments, and the number of reruns of each segment.
        self._parts: dict[int, list[Checkpoint]] = {}
        self._times: dict[int, list[int]] = {}

    def on_graph_read(self, live: LiveGraph) -> None:
        """Remember the segments of the graph that `torch.utils.checkpoint` will recompute."""
        if live.checkpoints.parts:
            self._parts[live.position] = live.checkpoints.parts

    def on_backward_end(self, event: BackwardEnded) -> None:
        """Read how often each checkpointed segment was recomputed, before the next backward."""
        position = event.live.position
        if position in self._parts:
            self._times[position] = [part.times() for part in self._parts[position]]

    def on_step_end(self, event: None) -> None:
        self._parts, self._times = {}, {}

    def node_columns(self, backward: Backward) -> Columns:
        parts = self._parts.get(backward.position, [])
        times = self._times.get(backward.position)
        if times is None:
            return {"note": {node: _NOTE_SEGMENT for part in parts for node in part.nodes}}
        numbers = sorted((number, node) for node, number in enumerate(backward.numbers))
        reruns = Counter({node: 0 for part in parts for node in part.nodes})
        unknown: set[int] = set()
        for part, count in zip(parts, times, strict=True):
            span = (bisect_left(numbers, (end,)) for end in (part.start, part.stop))
            inside = [node for _, node in numbers[slice(*span)]]
            reruns.update(inside * count)
            if part.selects:
                unknown.update(inside, part.nodes)
        known = {node: count for node, count in reruns.items() if node not in unknown}
        notes = {
            n: _NOTE_RERAN if known.get(n) else CHECKPOINTED for part in parts for n in part.nodes
        }
        return {"note": notes, "reruns": known}
