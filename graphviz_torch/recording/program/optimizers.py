"""Record the optimizer steps: their number, the parameters that they update, and the loss scale.

Calls in an optimizer's own code are recognized by their frames: they detach no gradient of the
program, and all their in-place changes together are one step. A closure that the program gave to
`step` is code of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import Optimizer

from ...internals.functions import TensorBase
from ...internals.grad_scaler import SCALING, loss_scale
from ...internals.hooks.calls import Called
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.probes import Probe
from ..optimizer_log import OptimizerLog, OptimizerRecord


class _RunningStep:
    """A running optimizer step."""

    __slots__ = ("closure", "frame", "optimizer")

    def __init__(self, optimizer: Optimizer, closure: CodeType | None, frame: FrameType) -> None:
        self.optimizer = optimizer
        self.closure = closure
        self.frame = frame  # PyTorch's frame that calls the step


class Steps:
    """The optimizer steps of a recording.

    Args:
        own: returns the set of the id() of the model's parameters.
    """

    def __init__(self, own: Callable[[], set[int]] = set) -> None:
        self._own = own
        self.log = OptimizerLog(OptimizerRecord)
        self.count = 0
        # The id() of each parameter updated in this training step; None before its first update.
        self.updated: set[int] | None = None
        self.ever: set[int] = set()  # id() of each parameter that any step of the run updated
        self.held: set[frozenset[int]] = set()  # id() of the parameters of each optimizer
        self.running: list[_RunningStep] = []  # outermost first
        self._by_hand = False

    def on_optimizer_step_start(self, event: Stepping) -> None:
        """Handle the start of a step."""
        optimizer = event.optimizer
        self.log.on_optimizer_step_start(event)
        self.count += 1
        self.held.add(frozenset(map(id, parameters_of(optimizer))))
        parameters = self.parameters(optimizer)
        if parameters is not None:
            self.updated = (self.updated or set()) | parameters
            self.ever |= parameters
        closure = closure_code(event.args)
        self.running = [step for step in self.running if _is_running(step, event.frame)]
        self.running.append(_RunningStep(optimizer, closure, event.frame))

    def parameters(self, optimizer: Optimizer) -> set[int] | None:
        """Return the id() of each parameter that an optimizer updates.

        Returns None if the optimizer updates copies: ZeRO and other optimizers with master copies
        update flat, one-dimensional copies of the model's parameters, and copy these back after
        the step.
        """
        parameters = parameters_of(optimizer)
        keys = set(map(id, parameters))
        flat = parameters and all(TensorBase.dim(parameter) == 1 for parameter in parameters)
        return None if flat and keys.isdisjoint(self._own()) else keys

    def begin_step(self) -> None:
        """Forget the optimizers of the last training step."""
        self.updated, self.held = None, set()

    def on_optimizer_step_end(self, event: Stepped) -> None:
        """Handle the end of a step."""
        self.log.on_optimizer_step_end(event)
        for i, step in enumerate(self.running):
            if step.optimizer is event.optimizer:
                del self.running[i:]
                return

    def step_by_hand(self) -> None:
        """Note that the program changed a parameter whose gradient it had read."""
        self._by_hand = True

    def begin_backward(self) -> int:
        """Return the number of optimizer steps and updates by hand before this backward."""
        self.count += self._by_hand
        self._by_hand = False
        return self.count

    def is_own_call(self, frame: FrameType | None) -> bool:
        """Return True if the code of an optimizer's step, not its closure, calls from `frame`."""
        if not self.running:
            return False
        closures = {step.closure for step in self.running}
        frames = {id(step.frame) for step in self.running}
        while frame is not None:
            if frame.f_code in closures:
                return False
            if id(frame) in frames:
                return True
            frame = frame.f_back
        self.running = []  # the steps raised an exception: such steps have no end event
        return False


def closure_code(args: Iterable[Any]) -> CodeType | None:
    """Return the code of the closure among a step's arguments; None if there is none."""
    return next((code for value in args if (code := _code(value)) is not None), None)


def _is_running(step: _RunningStep, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame is step.frame:
            return True
        frame = frame.f_back
    return False


def _code(closure: Any) -> CodeType | None:
    """Return the code object that a call of `closure` runs first; None if unknown."""
    while isinstance(closure, partial):
        closure = closure.func
    function = getattr(closure, "__func__", closure)
    if not hasattr(function, "__code__"):
        function = (
            getattr(type(closure).__call__, "__func__", type(closure).__call__)
            if callable(closure)
            else None
        )
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


class Scaling:
    """The factor by which a GradScaler multiplied the loss since the last backward."""

    functions = frozenset((TensorBase.mul, TensorBase.__mul__, TensorBase.__rmul__, torch.mul))

    def __init__(self) -> None:
        self._scaler: torch.amp.GradScaler | None = None

    def on_call_end(self, event: Called) -> None:
        """Keep the scaler if this product is the loss multiplied by the scaler's factor."""
        code = event.frame.f_code
        if code.co_name in SCALING and code in SCALING.values():
            self._scaler = event.frame.f_locals["self"]

    def on_graph_read(self, live: object) -> None:
        """Drop the scaler, since the graph of the scaled loss was read."""
        self._scaler = None

    def scale(self) -> Probe | None:
        """Return the factor as a tensor on its device; None if the loss was not scaled."""
        return None if self._scaler is None else loss_scale(self._scaler)
