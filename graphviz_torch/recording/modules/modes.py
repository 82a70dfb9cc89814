"""In which mode each module was: train or eval."""

from __future__ import annotations

from ..listener import Listener, Rows
from ..live import LiveGraph
from ..program import Program


class Modes(Listener):
    """The mode of each module that ran, as it was when the last backward began."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._modes: dict[str, str] = {}

    def graph_read(self, live: LiveGraph) -> None:
        modules = self.program.table.called()
        known = [(m.training, path) for m, path in modules if hasattr(m, "training")]
        self._modes |= {path: "train" if training else "eval" for training, path in known}

    def step_ended(self, event: None) -> None:
        self._modes = {}

    def rows(self) -> Rows:
        return {"mode": self._modes}
