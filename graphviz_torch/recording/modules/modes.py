"""In which mode each module was: train or eval."""

from __future__ import annotations

from ..listener import Listener, Rows
from ..live import Live
from ..program import Program


class Modes(Listener):
    """The mode of each module that ran, as it was when the last backward began."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._modes: dict[str, str] = {}

    def graph_read(self, live: Live) -> None:
        modules = self.program.table.called()
        self._modes |= {path: "train" if m.training else "eval" for m, path in modules}

    def rows(self) -> Rows:
        return {"mode": self._modes}
