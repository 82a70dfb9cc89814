"""Regions that were compiled before the recording: each is traced once more, before it first runs.

So it has the same nodes, lines, modules and cuts as one that is compiled while it is recorded. It
takes dynamo's time once for a region and process.
"""

from __future__ import annotations

from types import FrameType

from ...internals.compiler.retrace import trace_again
from ...internals.hooks.dispatch import sequence_number
from ..program import Program
from .trace import OperationTrace


class Regions:
    """What is told of the graphs that compiled code calls.

    Args:
        program: whose calls are looked at.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._traces: list[OperationTrace] = []  # of the graph that is called
        self._start = 0

    @classmethod
    def wanted(cls, program: Program) -> Regions | None:
        """One for this program; None where regions stay closed, or little may be asked of calls."""
        options = program.options
        return None if options.compiled == "closed" or options.light else cls(program)

    def began(self, frame: FrameType) -> None:
        """This frame of dynamo's code is about to call a graph."""
        if self._program.is_here():
            self._traces = []
            try:
                trace_again(frame, self._new)
            except Exception:  # what dynamo cannot trace stays closed
                self._traces = []
            self._start = sequence_number()

    def ended(self) -> None:
        """It has run."""
        if self._traces and self._program.is_here():
            [*_, trace] = self._traces
            self._traces = []
            trace.expected(self._start, sequence_number())

    def _new(self) -> OperationTrace:
        self._traces.append(OperationTrace())
        return self._traces[-1]
