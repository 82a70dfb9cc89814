"""Count the backwards whose gradients each optimizer step uses.

With gradient accumulation, an epoch may end with too few batches for a full step. Their gradients
are then added to those of the next epoch, or are divided by the number of batches in a full step.
Rules also check whether the loss of each batch is divided by the number of batches.
"""

from __future__ import annotations

from collections import Counter

from ...findings.rules.training import UnevenAccumulation
from ...graph.events import AccumulatedBackwards
from ...internals.frames import CodePosition
from ...internals.hooks.optimizers import Stepping
from ..listener import BackwardBegan, BackwardEnded, Listener, Resumed
from ..live import roots_of
from ..program import Program
from ..program.events import UserLine

_MIN_STEPS = 2  # a number of backwards is the usual one if at least this many steps had it
_MAX_LINES = 64  # number of observed pairs of lines that call backward and step


class Accumulation(Listener):
    """Listener that counts the backwards whose gradients an optimizer step uses.

    A step is recorded if one source line called several of these backwards, and reported if the
    number differs from that of other steps.
    """

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Line that calls backward -> number of backwards since the last optimizer step.
        self._running: Counter[CodePosition | None] = Counter()
        # Line that called the last backward -> sequence numbers of the backward's roots.
        self._roots: dict[CodePosition | None, list[int]] = {}
        # (line that calls backward, line that steps) -> number of backwards -> number of steps
        # with this number of backwards
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
                numbers = self._roots.get(line, [])
                self.events.note(found, line, numbers, steps=counts[count], stepped=UserLine(step))
        self._running.clear()
        while len(self._steps) > _MAX_LINES:
            del self._steps[next(iter(self._steps))]

    def _look_at(
        self, line: CodePosition | None, step: CodePosition | None, counts: Counter[int], now: int
    ) -> None:
        """Report an optimizer step with more or fewer backwards than most other steps.

        Args:
            line: the line that calls backward.
            step: the line that steps.
            counts: number of steps, by number of backwards.
            now: number of backwards of this step.
        """
        (usual, steps), *others = counts.most_common()
        if usual > 1 and steps >= _MIN_STEPS and now != usual and len(others) == 1:
            found = UnevenAccumulation(usual=usual, backwards=now)
            self.events.note(found, line, count=counts[now], stepped=UserLine(step))
