"""Regions that were compiled before the recording: each is traced once more, before it first runs.

So it has the same nodes, lines, modules and cuts as one that is compiled while it is recorded. It
takes dynamo's time once for a region and process.
"""

from __future__ import annotations

from types import FrameType

from torch import Tensor

from ...internals.compiler.retrace import original, trace_again
from ...internals.frames import variables
from ...internals.hooks.dispatch import sequence_number
from ...internals.tensors.pytree import tensors
from ..program import Program
from .trace import OperationTrace


class Regions:
    """What is told of the graphs that compiled code calls.

    Args:
        program: whose calls are looked at.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        program.table.trace_calls()
        self._trace: OperationTrace | None = None  # of the graph that is called
        self._start = 0
        self._given: list[Tensor] = []  # what the code was given

    @classmethod
    def wanted(cls, program: Program) -> Regions | None:
        """One for this program; None where regions stay closed, or little may be asked of calls."""
        options = program.options
        return None if options.compiled == "closed" or options.light else cls(program)

    def began(self, frame: FrameType) -> None:
        """This frame of dynamo's code is about to call a graph."""
        if self._program.is_here() and original(frame) is not None:
            trace = trace_again(frame, OperationTrace)
            self._trace = trace if isinstance(trace, OperationTrace) else None
            called = None if self._trace is None else self._trace.modules
            self._program.table.call_inside(called, self._program.module)
            self._start = sequence_number()
            if self._program.tracker.known:
                names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
                self._given = tensors(*variables(frame, *names))

    def ended(self) -> None:
        """It has run; a cut may have been in what it was given."""
        given, self._given = self._given, []
        if given and (end := sequence_number()) > self._start:
            tracker = self._program.tracker
            tracker.use(tracker.trails(given), range(self._start, end))
        if self._trace is not None and self._program.is_here():
            self._trace.expected(self._start, sequence_number())
            self._trace = None
