"""Find parameters that the program replaces during the forward and puts back before the step.

Backward reaches a parameter of a module, but when the optimizer steps, the module has another
parameter of the same name, which the optimizer holds and which has no gradient. The gradient went
to a temporary parameter.
"""

from __future__ import annotations

from ...findings.rules.watched import ReplacedParameters
from ...internals.hooks.optimizers import Stepping, parameters_of
from ..listener import BackwardEnded, Listener, Resumed
from ..program import Program
from ..program.events import UserLine

_MIN_STEPS = 2  # fewer steps are not reported


class TemporaryParameters(Listener):
    """Listener that reports gradients of temporary parameters that no optimizer holds."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Name of each parameter that a backward reached since the last step -> its id()
        self._reached: dict[str, int] = {}
        self._backward = UserLine(None)  # line of the last backward
        self._steps = 0

    def on_backward_end(self, event: BackwardEnded) -> None:
        reached, known = event.backward.reached, self.program.steps.ever
        if not known or reached <= known:
            return  # no optimizer has stepped, or optimizers hold all of these parameters
        if event.error is None and event.backward.call.accumulates:
            named = self.program.parameters()
            self._reached |= {name: id(p) for name, p in named if id(p) in reached}
            self._backward = UserLine(event.backward.call.place)

    def on_optimizer_step_start(self, event: Stepping) -> None:
        reached, self._reached = self._reached, {}
        if not reached:
            return
        waiting = {id(p) for p in parameters_of(event.optimizer) if p.is_leaf and p.grad is None}
        named = [(name, id(p)) for name, p in self.program.parameters() if id(p) in waiting]
        names = [name for name, key in named if reached.get(name, key) != key]
        self._steps += bool(names)
        if names and self._steps >= _MIN_STEPS:
            self.events.note(
                ReplacedParameters(parameters=tuple(names[:4]), count=len(names)),
                self.program.place(event.frame),
                steps=self._steps,
                backward=self._backward,
            )

    def on_resume(self, event: Resumed) -> None:
        self._reached = {}
