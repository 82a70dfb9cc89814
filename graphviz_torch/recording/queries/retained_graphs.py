"""Find backwards with `retain_graph=True` or `create_graph=True` without a second backward."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import field

from ...findings.rules.meaning.calls import RetainedBy, UnneededRetainGraph
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ..program.log import Found, Query
from ..program.rows import GraphRow, ResumeRow, TrainingStepRow

_MAX_LINES = 64  # maximum number of observed lines that call backward
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
