"""Count the backwards whose gradients each optimizer step uses.

With gradient accumulation, the last batches of an epoch may be too few for a step: their gradients
are then added to those of the next epoch, or are divided by the number of a full step. Rules also
check whether the loss of each batch is divided by the number of batches.
"""

from __future__ import annotations

from collections import Counter

from ...graph.events import UnevenAccumulation
from ...graph.events.means import AccumulatedBackwards
from ...internals.frames import CodePosition
from ...internals.hooks.optimizers import Stepping
from ..listener import BackwardBegan, BackwardEnded, Listener, Resumed
from ..live import roots_of
from ..program import Program

_MIN_STEPS = 2  # steps with the usual number of backwards, for a report
_MAX_LINES = 64  # lines of backwards


class Accumulation(Listener):
    """Listener that reports steps that use the gradients of several backwards of one line, and
    steps for which the line called backward unusually often or rarely.
    """

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Number of backwards since the last optimizer step, by the line that calls backward.
        self._running: Counter[CodePosition | None] = Counter()
        # Sequence numbers of the roots of the last backward, by its line.
        self._roots: dict[CodePosition | None, list[int]] = {}
        # Number of steps by their number of backwards, for each line of backward and of the step.
        self._steps: dict[tuple[CodePosition | None, CodePosition | None], Counter[int]] = {}

    def on_backward_start(self, event: BackwardBegan) -> None:
        if event.live.call.accumulates:
            self._roots = {event.live.call.place: roots_of(event.outputs)}

    def on_backward_end(self, event: BackwardEnded) -> None:
        if event.live.call.accumulates and event.error is None:
            self._running[event.live.call.place] += 1

    def on_resume(self, event: Resumed) -> None:
        self._running.clear()

    def on_optimizer_step_start(self, event: Stepping) -> None:
        step = self.program.place(event.frame)
        for line, count in self._running.items():
            counts = self._steps.setdefault((line, step), Counter())
            counts[count] += 1
            if len(counts) > 1:
                self._look_at(line, step, counts, count)
            elif count > 1 and counts[count] >= _MIN_STEPS and not self.program.changes.read:
                found = AccumulatedBackwards(backwards=count)
                line_of_step = self.program.line()(step)
                numbers = self._roots.get(line, [])
                self.events.note(found, line, numbers, steps=counts[count], stepped=line_of_step)
        self._running.clear()
        while len(self._steps) > _MAX_LINES:
            del self._steps[next(iter(self._steps))]

    def _look_at(
        self, line: CodePosition | None, step: CodePosition | None, counts: Counter[int], now: int
    ) -> None:
        """Report the step if its number of backwards differs from the usual one at these lines."""
        (usual, steps), *others = counts.most_common()
        if usual > 1 and steps >= _MIN_STEPS and now != usual and len(others) == 1:
            found = UnevenAccumulation(usual=usual, backwards=now)
            self.events.note(found, line, count=counts[now], stepped=self.program.line()(step))
