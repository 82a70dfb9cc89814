"""Count the backwards whose gradients each step uses, and find graphs retained for no backward.

With gradient accumulation, an epoch may end with too few batches for a full step. Their gradients
are then added to those of the next epoch, or are divided by the number of batches in a full step.
Rules also check whether the loss of each batch is divided by the number of batches.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import field

from ...findings.rules.meaning.calls import RetainedBy, UnneededRetainGraph
from ...findings.rules.training import UnevenAccumulation
from ...graph.events import AccumulatedBackwards
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ..program.events import UserLine
from ..program.log import Found, Query
from ..program.rows import BackwardRow, GraphRow, ResumeRow, StepRow, TrainingStepRow

_MIN_STEPS = 2  # a number of backwards is the usual one if at least this many steps had it
_MAX_LINES = 64  # number of observed pairs of lines that call backward and step


class Accumulation(Query):
    """Find optimizer steps that use the gradients of several backwards of one line.

    Such a step is an `AccumulatedBackwards`. If other steps had another number of backwards, it is
    an `UnevenAccumulation`.
    """

    def __init__(self) -> None:
        # Line that calls backward -> number of backwards since the last optimizer step.
        self._running: Counter[CodePosition | None] = Counter()
        # Line that called the last backward -> sequence numbers of the backward's roots.
        self._roots: dict[CodePosition | None, tuple[int, ...]] = {}
        # (line that calls backward, line that steps) -> number of backwards -> number of steps
        # with this number of backwards
        self._steps: dict[tuple[CodePosition | None, CodePosition | None], Counter[int]] = {}

    def on_backward(self, row: BackwardRow) -> None:
        self._roots = {row.place: row.roots}
        self._running[row.place] += 1

    def on_step(self, row: StepRow) -> Iterator[Found]:
        for line, count in self._running.items():
            yield from self._count(row, line, count)
        self._running.clear()

    def on_resume(self, row: ResumeRow) -> None:
        self._running.clear()

    def _count(self, step: StepRow, line: CodePosition | None, count: int) -> Iterator[Found]:
        """Count a step, and compare its number of backwards with those of most other steps.

        Args:
            step: the step.
            line: the line that called backward.
            count: number of these backwards since the last step.
        """
        stepped = UserLine(step.place)
        counts = self._steps.setdefault((line, step.place), Counter())
        counts[count] += 1
        (usual, steps), *others = counts.most_common()
        if others:
            if usual > 1 and steps >= _MIN_STEPS and count != usual and len(others) == 1:
                uneven = UnevenAccumulation(usual=usual, backwards=count)
                yield Found(uneven, line, latest={"count": counts[count], "stepped": stepped})
        elif count > 1 and steps >= _MIN_STEPS and not step.reads_gradients:
            found = AccumulatedBackwards(backwards=count)
            roots = self._roots.get(line, ())
            yield Found(found, line, roots, latest={"steps": steps, "stepped": stepped})
        while len(self._steps) > _MAX_LINES:
            del self._steps[next(iter(self._steps))]


_MAX_GRAPHS = 4  # maximum number of retained graphs per line to compare with later backwards


@mutable
class _LineGraphs:
    """The graphs that backward calls at one source line retained (`retain_graph=True`)."""

    by: RetainedBy
    count: int = 0  # number of retained graphs
    runs_again: bool = False  # True if another backward ran through any of them
    # Sequence numbers of the nodes of the latest graphs.
    numbers: deque[frozenset[int]] = field(default_factory=lambda: deque(maxlen=_MAX_GRAPHS))


class RetainingLines(Query):
    """Find lines that retain graphs through which no other backward runs."""

    def __init__(self) -> None:
        self._lines: dict[CodePosition | None, _LineGraphs] = {}
        # Lines that called backward in this training step.
        self._running: set[CodePosition | None] = set()

    def on_graph(self, row: GraphRow) -> None:
        self._running.add(row.place)
        ran = row.numbers_ran() if self._lines else frozenset()
        for known in self._lines.values():
            disjoint = [numbers.isdisjoint(ran) for numbers in known.numbers]
            known.runs_again = known.runs_again or not all(disjoint)
        if row.retained_by is not None:
            known = self._lines.setdefault(row.place, _LineGraphs(row.retained_by))
            known.count += 1
            known.numbers.append(frozenset(row.numbers) - {-1})
            while len(self._lines) > _MAX_LINES:
                del self._lines[next(iter(self._lines))]

    def on_resume(self, row: ResumeRow) -> None:
        self._lines = {}  # an unobserved backward may have run through these graphs

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._running = set()

    def events_of_run(self) -> Iterator[Found]:
        for place, known in self._lines.items():
            # A single graph is not reported, because the program may still use it.
            if place in self._running and known.count > 1 and not known.runs_again:
                event = UnneededRetainGraph(by=known.by)
                yield Found(event, place, latest={"count": known.count})
