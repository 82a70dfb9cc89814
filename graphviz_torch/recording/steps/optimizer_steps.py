"""Record each optimizer step: its learning rates, and the number of parameters outside the model.

This listener also runs with gradients="finite", because an optimizer step shows that the program
trains.
"""

from __future__ import annotations

from ...graph.events import OptimizerStep
from ...internals.frames import user_frame
from ...internals.hooks.optimizers import Stepping, parameters_of
from ..listener import Listener


class OptimizerSteps(Listener):
    """Listener that adds an event for each line that calls an optimizer's step."""

    def on_optimizer_step_start(self, event: Stepping) -> None:
        optimizer, program = event.optimizer, self.program
        parameters = program.steps.parameters(optimizer) or set()
        strangers = parameters - program.table.own_ids()
        if len(strangers) < len(parameters):  # the optimizer also updates parameters of the model
            # Only leaves are checked, because PyTorch warns when `.grad` of a non-leaf is read.
            leaves = (p for p in parameters_of(optimizer) if id(p) in strangers and p.is_leaf)
            strangers = {id(p) for p in leaves if p.grad is None}
        record = program.steps.log.get(optimizer)
        rates = () if record is None else tuple(record.rates)
        name = program.optimizer_name(optimizer, user_frame(event.frame))
        maximizes = any(group.get("maximize") is True for group in optimizer.param_groups)
        step = OptimizerStep(optimizer=name, foreign=len(strangers), maximizes=maximizes)
        self.events.note(step, program.place(event.frame), learning_rates=rates)
