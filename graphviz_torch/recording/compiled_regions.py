"""Find the operations inside compiled regions when the regions run.

A region that was compiled before the recording is traced a second time, when it first runs in the
recording. Its nodes, lines, modules and cuts are then known, too. The second trace runs Dynamo once
per region and process. `RegionWatch` calls the methods of `Regions`. Listeners receive a
`RegionRan` for each region that ran.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from ..internals.compiler.retrace import original_code, trace_again
from ..internals.frames import frame_variables
from ..internals.hooks.dispatch import sequence_number
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.pytree import tensors
from .compiled_trace import OperationTrace
from .listener import RegionRan
from .program import Program
from .program.tracking import Trail


class Regions:
    """Callbacks for calls of compiled callables, and for the graphs that compiled code runs.

    Args:
        program: the recorded program.
        on_region: called for each region that ran, if the operations inside are known.
    """

    def __init__(self, program: Program, on_region: Callable[[RegionRan], None]) -> None:
        self._program, self._on_region = program, on_region
        self._opens = program.options.opens_regions
        self._trace: OperationTrace | None = None  # trace of the running graph
        self._start = 0  # sequence number of the next node when the running graph began
        self._given: list[Tensor] = []  # arguments of the compiled code
        # For a compiled callable that has run no graph yet: the `Trail`s of its arguments, and the
        # sequence number of the next node when the callable began.
        self._entered: tuple[Iterable[Trail], int] | None = None

    def on_region_enter(self, given: tuple[Any, ...]) -> None:
        """Store the `Trail`s (detached histories) of the arguments of a compiled callable.

        Args:
            given: the arguments.
        """
        tracker = self._program.tracker
        if self._program.is_here() and tracker.known:
            with unseen_calls():
                self._entered = tracker.trails(tensors(given)), sequence_number()

    def on_region_exit(self) -> None:
        """Record which results of cuts a compiled callable used, at the end of its call.

        The operations of a callable that ran no graph were not observed. If arguments of such a
        callable are results of cuts, the last node that it created is recorded as their user.
        """
        entered, self._entered = self._entered, None
        if entered is not None and self._program.is_here():
            trails, start = entered
            if trails and (end := sequence_number()) > start:
                self._program.tracker.use(trails, [end - 1])

    def on_graph_start(self, frame: FrameType, own: bool) -> None:
        """Prepare for a graph that compiled code is about to run.

        Args:
            frame: the frame of the compiled code.
            own: True if the graph runs the program's operations one by one, False if a backend
                compiled the graph.
        """
        self._entered = None
        if self._program.is_here() and original_code(frame) is not None:
            if torch.is_grad_enabled() and not own:
                self._program.compiled_graph_began()
            if not self._opens:
                return
            trace = trace_again(frame, OperationTrace)
            self._trace = trace if isinstance(trace, OperationTrace) else None
            called = None if self._trace is None else self._trace.modules
            self._program.table.call_inside(called, self._program.module)
            self._start = sequence_number()
            if self._program.tracker.known:
                self._given = tensors(*frame_variables(frame, *_arguments(frame.f_code)))

    def on_graph_result(self, args: tuple[Any, ...], result: Any) -> None:
        """Report a compiled graph that returned, with its operations, arguments and result."""
        region = None if self._trace is None else self._trace.region
        if region is not None and self._program.in_compiled_graph:
            given = [one for one in args if isinstance(one, Tensor)]
            numbers = self._start, sequence_number()
            self._on_region(RegionRan(region, given, list(result), *numbers))

    def on_graph_end(self) -> None:
        """Record that the nodes of a compiled graph use cuts (calls that pass no gradient).

        These are the cuts upstream of the graph's inputs. Called when the graph has run.
        """
        if not self._program.is_here():
            return
        self._program.compiled_graph_ended()
        given, self._given = self._given, []
        if given and (end := sequence_number()) > self._start:
            tracker = self._program.tracker
            with unseen_calls():
                tracker.use(tracker.trails(given), range(self._start, end))
        if self._trace is not None:
            self._trace.expect_node(self._start, sequence_number())
            self._trace = None


def _arguments(code: CodeType) -> tuple[str, ...]:
    """Return the names of all arguments of a function, including *args and **kwargs."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]
