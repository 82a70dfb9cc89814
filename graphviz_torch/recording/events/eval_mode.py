"""A step with gradients that came from a forward in eval mode."""

from __future__ import annotations

import sys

from torch import Tensor
from torch.nn import Module

from ...graph.events import EvalMode
from ...internals.frames import outwards, user_frame
from ...internals.functions import BATCH_NORM, DROPOUT
from ...internals.hooks.optimizers import Stepping
from ..listener import Listener, RunBegan
from ..program import Program
from .code import called, codes


class EvalModes(Listener):
    """Notes that an optimizer steps with what a backward gave in eval mode.

    An attack on a model runs such a backward too, and steps in train mode.
    """

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Of the last backward, if it was in eval mode, and the nodes that it began with.
        self._last: tuple[EvalMode, list[int]] | None = None

    def backward_began(self, event: RunBegan) -> None:
        if not event.live.call.accumulates:
            return
        mode = _eval_mode(self.program)
        fns = [t.grad_fn for t in event.outputs if isinstance(t, Tensor) and t.grad_fn is not None]
        numbers = [int(fn._sequence_nr()) for fn in fns]
        self._last = None if mode is None else (mode, numbers)

    def stepping(self, event: Stepping) -> None:
        if self._last is not None:
            mode, numbers = self._last
            # A run begins before the frames of its script, which its first step knows by this.
            frames = outwards(user_frame(sys._getframe(1)), self.program.frame)
            around = [frame.f_code for frame in frames]
            self.events.note(mode, called(codes(self.program, more=around), "eval"), numbers)

    def step_ended(self, event: None) -> None:
        self._last = None


def _eval_mode(program: Program) -> EvalMode | None:
    """All dropout and batch norm of a model is in eval mode, and the model too.

    Frozen batch norm in a model that trains is another thing: there the model itself is in train
    mode.
    """
    table = program.table
    every = table.modules()
    roots = [path for module, path in every if _trains(module)]
    found = []
    for module, path in every:
        acts = isinstance(module, DROPOUT) and module.p > 0
        acts = acts or (isinstance(module, BATCH_NORM) and module.track_running_stats)
        if acts and table.ran(path):
            if _trains(module) or any(not r or f"{path}.".startswith(f"{r}.") for r in roots):
                return None
            found.append((path, module))
    found = [(path, module) for path, module in found if table.learns(module)]
    if not found:
        return None
    classes = tuple(dict.fromkeys(type(module).__name__ for _, module in found))
    return EvalMode(module=found[0][0], count=len(found), classes=classes)


def _trains(module: Module) -> bool:
    """Is it in train mode, as a module is without the attribute, which a program may delete."""
    return bool(getattr(module, "training", True))
