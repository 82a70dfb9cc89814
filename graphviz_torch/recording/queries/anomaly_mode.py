"""Find training steps in anomaly mode, and the line that has switched the mode on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar

import torch

from ...findings.rules.anomaly_mode import AnomalyMode
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition
from ...internals.hooks.anomaly_mode import AnomalySwitch, AnomalyWatch
from ..listener import BackwardBegan
from ..program import Program
from ..program.log import Found, Query, RowsOf
from ..program.rows import ObservedRow, ResumeRow, StepEndRow, StepRow


class AnomalyModeRow(NamedTuple):
    """A backward that begins with anomaly mode on or off."""

    enabled: bool


def anomaly_mode(event: BackwardBegan, program: Program) -> Iterable[AnomalyModeRow]:
    """Return a row of the mode in which a backward begins."""
    return (AnomalyModeRow(torch.is_anomaly_enabled()),)


class AnomalyModes(Query):
    """Find consecutive steps of an optimizer after backwards in anomaly mode."""

    needs = ()
    watches = (AnomalyWatch,)
    rows_of: ClassVar[RowsOf] = {"on_backward_start": anomaly_mode}

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._place: CodePosition | None = None  # the line that last switched the mode on
        self._enabled = False  # True if the mode was on in the last backward
        self._backwards = 0  # number of backwards
        self._used: dict[int, int] = {}  # optimizer -> number of backwards before its last step
        self._optimizer = 0  # the optimizer that steps
        self._steps: Counter[int] = Counter()  # number of steps in anomaly mode, by optimizer
        self._continued: set[int] = set()  # optimizers whose last step was in anomaly mode

    def on_observed(self, row: ObservedRow) -> None:
        event = row.event
        if isinstance(event, AnomalySwitch) and event.enabled:
            is_same = event.was_enabled or event.restores
            self._place = self._place if is_same else row.place

    def on_anomaly_mode(self, row: AnomalyModeRow) -> None:
        self._enabled = row.enabled
        self._backwards += 1

    def on_step(self, row: StepRow) -> None:
        self._optimizer = row.optimizer

    def on_step_end(self, row: StepEndRow) -> Iterator[Found]:
        # A closure runs backward during the step, so that the mode is known only at its end.
        if self._used.get(self._optimizer) == self._backwards:
            return  # a second step with the same gradients, or with those of the program
        self._used[self._optimizer] = self._backwards
        if not self._enabled:
            self._continued.discard(self._optimizer)
            return
        self._steps[self._optimizer] += 1
        if self._optimizer in self._continued:
            yield Found(AnomalyMode(), self._place, latest={"steps": max(self._steps.values())})
        self._continued.add(self._optimizer)

    def on_resume(self, row: ResumeRow) -> None:
        self._begin()
