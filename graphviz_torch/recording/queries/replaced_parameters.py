"""Find parameters that the program replaces during the forward and puts back before the step.

Backward reaches a parameter of a module, but when the optimizer steps, the module has another
parameter of the same name, which the optimizer holds and which has no gradient. The gradient went
to a temporary parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from ...findings.rules.watched_parameters import ReplacedParameters
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition
from ...internals.hooks.optimizers import Stepping, parameters_of
from ..listener import BackwardEnded
from ..program import Program
from ..program.events import UserLine
from ..program.log import Found, Query, RowsOf
from ..program.rows import ResumeRow, TrainingStepRow

_MIN_STEPS = 2  # fewer steps are not reported


class ReachedParametersRow(NamedTuple):
    """Parameters that a backward reached, and that no optimizer has updated."""

    place: CodePosition | None
    parameters: dict[str, int]  # by name: number of the tensor


class WaitingParametersRow(NamedTuple):
    """The parameters without a gradient of an optimizer that is about to step."""

    place: CodePosition | None
    parameters: dict[str, int | None]  # by name: number of the tensor, if it has one


def reached_parameters(event: BackwardEnded, program: Program) -> Iterable[ReachedParametersRow]:
    """Return a row of the parameters that a backward reached and no optimizer has updated."""
    backward, known = event.backward, program.steps.ever
    others = backward.reached - known if known else ()
    if not others or backward.failed or not backward.call.accumulates:
        return ()
    found = [(name, p) for name, p in program.parameters() if id(p) in others]
    numbers = {name: program.identities.number(p) for name, p in found}
    return (ReachedParametersRow(backward.call.place, numbers),) if numbers else ()


def waiting_parameters(event: Stepping, program: Program) -> Iterable[WaitingParametersRow]:
    """Return a row of an optimizer's parameters without a gradient, after such a backward."""
    if not program.steps.has_untrained_leaves():
        return ()
    waiting = {id(p) for p in parameters_of(event.optimizer) if p.is_leaf and p.grad is None}
    found = [(name, p) for name, p in program.parameters() if id(p) in waiting]
    numbers = {name: program.identities.find(p) for name, p in found}
    return (WaitingParametersRow(program.place(event.frame), numbers),)


class TemporaryParameters(Query):
    """Find gradients of temporary parameters that no optimizer holds."""

    rows_of: ClassVar[RowsOf] = {
        "on_backward_end": reached_parameters,
        "on_optimizer_step_start": waiting_parameters,
    }

    def __init__(self) -> None:
        # The parameters since the last step, by name: number of the tensor, and line of backward.
        self._reached: dict[str, tuple[int, CodePosition | None]] = {}
        self._steps = 0

    def on_reached_parameters(self, row: ReachedParametersRow) -> None:
        self._reached |= {name: (n, row.place) for name, n in row.parameters.items()}

    def on_waiting_parameters(self, row: WaitingParametersRow) -> Iterator[Found]:
        reached, self._reached = self._reached, {}
        waiting = [name for name in row.parameters if name in reached]
        names = [name for name in waiting if reached[name][0] != row.parameters[name]]
        self._steps += bool(names)
        if names and self._steps >= _MIN_STEPS:
            event = ReplacedParameters(parameters=tuple(names[:4]), count=len(names))
            latest = {"steps": self._steps, "backward": UserLine(reached[names[-1]][1])}
            yield Found(event, row.place, latest=latest)

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._reached = {}

    def on_resume(self, row: ResumeRow) -> None:
        self._reached = {}
