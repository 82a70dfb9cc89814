"""The column of what each node keeps for backward."""

from __future__ import annotations

from ..graph import SavedTensor
from ..internals.tensors.saved_tensors import NOT_TOLD, TELLS
from .backward import Backward
from .listener import Columns, Listener
from .live import LiveGraph
from .program import Program


class SavedTensors(Listener):
    """What each node keeps for backward, and how many bytes: counted as `memory.py` says."""

    needs = ("memory",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._rows: dict[int, dict[int, tuple[SavedTensor, ...]]] = {}  # by graph, by node

    def graph_read(self, live: LiveGraph) -> None:
        """Read it before backward frees it."""
        if not TELLS:
            self.program.remarks.leave_out(NOT_TOLD)
            return
        self._rows[live.position] = live.memory.rows
        for node, text in live.memory.notes.items():
            live.note(node, text)

    def step_ended(self, event: None) -> None:
        self._rows = {}

    def columns(self, backward: Backward) -> Columns:
        return {"saved": self._rows.get(backward.position, {})}
