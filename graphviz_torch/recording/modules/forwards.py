"""Find forwards through which no backward runs, and forwards that repeat an earlier one.

Only outermost forwards are observed. Each forward has one of three states:

    pending      no backward has run through the forward, but a later one may
    used         the graph of a backward contains nodes of the forward
    discarded    the forward's graph was freed while the forward was pending

Forwards of one line that are pending after several optimizer steps are kept by the program.
A weak reference to the hook dictionary of the result's node shows when the graph is freed.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any

import torch

from ...findings.rules.forwards import DiscardedForward
from ...findings.rules.memory import RetainedForward
from ...findings.rules.silence import RepeatedForward
from ...graph import Graph
from ...graph.immutable import mutable
from ...internals.dynamo import is_jit_tracing
from ...internals.frames import CodePosition, frame_variables, user_frame, user_frames
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.engine import running_node
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.hooks.nodes import hook_dictionaries
from ...internals.tensors.pytree import tensors
from ...internals.tensors.references import tensors_made_since
from ...tracing.tracer import collect_nodes
from ..backward import Backward
from ..listener import BackwardBegan, Listener, Resumed
from ..program import Program
from ..program.code import codes, find_method_call
from ..program.events import UserLine
from ..program.source_lines import Lines, first_difference, own_line
from ..queries.reference_forwards import append_call, argument_key

_MAX_PENDING, _MAX_LINES = 64, 256
_MAX_TENSORS = 64  # maximum number of tensors to search for the one that keeps a forward
_MIN_FORWARDS = 2  # a line with fewer discarded forwards is not reported
_MIN_STEPS = 2  # a line of which forwards are used is reported after this number of steps
_MIN_KEPT = 3  # number of steps whose forwards are still alive, for a line to be reported


@mutable(eq=False)
class _Forward:
    """A forward whose result requires a gradient."""

    module: str
    lines: Lines
    start: int  # the forward created nodes with start <= sequence number < end
    end: int
    graph: weakref.ref[Any]  # hook dictionary of the result's node; None if the graph was freed
    training: bool  # True if the module was in train mode
    given: tuple[Any, ...]  # key of the arguments
    cuts: int  # number of cuts that were recorded before the forward ended
    step: int  # number of optimizer steps before the forward
    was_read: bool = False  # True if the program read a value into Python after the forward


@mutable
class _LineForwards:
    """The forwards that were called with the same call stack."""

    module: str = ""
    used: bool = False  # True if a backward ran through any of these forwards
    # (`was_read`, `training`) of a forward -> number of such forwards that were discarded
    counts: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    # Numbers of the optimizer steps before forwards that were used, and before forwards in train
    # mode that were discarded without a read -> number of these forwards.
    used_in: Counter[int] = field(default_factory=Counter)
    dropped_in: Counter[int] = field(default_factory=Counter)
    # Variable that keeps the pending forwards' results, and the line that appends them to it; None
    # before the search.
    holder: tuple[str, CodePosition | None] | None = None


class Forwards(Listener):
    """Listener that reports discarded and repeated forwards."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._began = -1  # sequence number at the start of the running forward; -1: not observed
        self._argument_key: tuple[Any, ...] = ()
        self._pending: deque[_Forward] = deque(maxlen=_MAX_PENDING)
        self._last: _Forward | None = None  # latest forward, whose result may still be read
        self._used_numbers: set[int] = set()  # of the nodes of the latest backward's graph
        self._lines: dict[Lines, _LineForwards] = {}

    def on_outermost_start(self, event: ModuleBegan) -> None:
        self._look_at_last()
        self._began = sequence_number()
        self._argument_key = ()
        if running_node() is not None:
            # A checkpoint repeats this forward inside backward, and runs backward through it there.
            self._began = -1
        else:
            args, kwargs = frame_variables(event.frame, "args", "kwargs")
            args = event.args if args is None else args
            self._argument_key = argument_key(args, kwargs, self.program)
            differentiable = any(each.grad_fn is not None for each in tensors(args, kwargs))
            if differentiable and torch.is_grad_enabled():
                self._began = -1  # ignored, since the argument is a result of another forward

    def on_outermost_end(self, event: ModuleEnded) -> None:
        if self._began < 0:
            return
        start, self._began = self._began, -1
        if is_jit_tracing():
            return  # sizes are tensors, which cannot be compared without changing the trace
        frames = user_frames(user_frame(event.frame))
        lines = tuple([(frame.f_code, frame.f_lasti) for frame in reversed(frames)])
        module = self.program.module
        append_call(self.program, self._argument_key, lines, event.output)
        fns = [t.grad_fn for t in tensors(event.output) if t.grad_fn is not None]
        if not fns or not torch.is_grad_enabled():
            return
        graph = weakref.ref(hook_dictionaries(fns[:1])[0])
        training = bool(getattr(event.module, "training", True))
        row = module, lines, start, sequence_number(), graph, training, self._argument_key
        self._last = _Forward(*row, self.program.cuts, self.program.steps.count)
        for other in self._pending if self._argument_key else ():
            if other.module == module and other.given == self._argument_key:
                self._note_repeated(module, other.lines, lines)
                break
        self._pending.append(self._last)

    def _note_repeated(self, module: str, first: Lines, second: Lines) -> None:
        at, line = first_difference(first, second), self.program.line()
        self.events.note(RepeatedForward(module=module, first=line(first[at])), second[at])

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._used_numbers = set(event.live.numbers)
        self._look_at_last()
        numbers = sorted(event.live.numbers)
        for forward in [*self._pending]:
            at = bisect_left(numbers, forward.start)
            if at < len(numbers) and numbers[at] < forward.end:
                known = self._line(forward)
                known.used = True
                known.used_in[forward.step] += 1
                self._pending.remove(forward)

    def on_resume(self, event: Resumed) -> None:
        self._pending.clear()
        self._last = None

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        self._look_at_last()
        for forward in [*self._pending]:
            if forward.graph() is None:
                self._pending.remove(forward)
                if forward is self._last:
                    self._last = None
                detached = (forward.start <= n < forward.end for n in self.program.cut_numbers)
                was_read = forward.was_read or any(detached)
                known = self._line(forward)
                known.counts[was_read, forward.training] += 1
                if forward.training and not was_read:
                    known.dropped_in[forward.step] += 1
        used = [lines for lines, known in self._lines.items() if known.used]
        for lines, known in self._lines.items():
            for (was_read, training), count in known.counts.items():
                if used and not known.used and count >= _MIN_FORWARDS:
                    event = DiscardedForward(
                        module=known.module, was_read=was_read, in_training=training
                    )
                    self.events.note(event, own_line(lines, used), count=count)
            steps = [step for step in known.dropped_in if known.used_in[step] == 1]
            if len(steps) >= _MIN_STEPS and len(steps) == len(known.used_in):
                event = DiscardedForward(module=known.module, in_loop=True)
                count = sum(known.dropped_in[step] for step in steps)
                self.events.note(event, lines[-1], count=count, steps=len(steps))
        self._look_at_retained(used)

    def _look_at_retained(self, used: Sequence[Lines]) -> None:
        """Report lines whose forwards of several earlier steps are in memory, and never used.

        Args:
            used: call stacks of the forwards that a loss used.
        """
        kept: dict[Lines, list[_Forward]] = {}
        for forward in self._pending:
            if forward.step < self.program.steps.count:
                kept.setdefault(forward.lines, []).append(forward)
        for lines, forwards in kept.items():
            steps = len({forward.step for forward in forwards})
            known = self._line(forwards[0])
            if known.used or not used or steps < _MIN_KEPT:
                continue
            if known.holder is None:
                known.holder = self._holder(forwards[-1])
            label, added = known.holder
            if label:
                event = RetainedForward(label=label)
                self.events.note(
                    event, added or own_line(lines, used), steps=steps, made=UserLine(lines[-1])
                )

    def _holder(self, forward: _Forward) -> tuple[str, CodePosition | None]:
        """Return the variable that keeps a forward's result, and the line that appends to it.

        The variable may keep a value that was computed from the result. If it is unknown, the
        result is ("", None).
        """
        found = sorted(tensors_made_since(forward.start), key=itemgetter(0))
        for _, fn, tensor in found[:_MAX_TENSORS]:
            numbers = (each._sequence_nr() for each in collect_nodes([fn])[0])
            if any(forward.start <= number < forward.end for number in numbers):
                label = self.program.variable(tensor)
                if label:
                    return label, find_method_call(codes(self.program), "append", label)
        return "", None

    def close(self) -> None:
        self._pending.clear()
        self._last = None

    def _line(self, forward: _Forward) -> _LineForwards:
        known = self._lines.get(forward.lines)
        if known is None:
            while len(self._lines) >= _MAX_LINES:
                del self._lines[next(iter(self._lines))]
            known = self._lines[forward.lines] = _LineForwards(forward.module)
        return known

    def _look_at_last(self) -> None:
        """Set `was_read` of the last forward if a value (such as `.item()`) was read since.

        It is assumed that the value was computed from the forward's result, unless it is older than
        the forward, or belongs to the graph of the latest backward.
        """
        last = self._last
        if last is not None and not last.was_read and self.program.cuts > last.cuts:
            last.was_read = any(
                number >= last.start and number not in self._used_numbers
                for number in self.program.cut_numbers
            )
