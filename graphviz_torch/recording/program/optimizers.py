"""Record the optimizer steps: their number, the parameters that they update, and the loss scale.

Calls made by an optimizer's own code are recognized by their frames. They do not count as cuts, and
all of their in-place changes count as one step. A closure that is passed to `step` counts as code
of the program.
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
        self.frame = frame  # the frame of PyTorch that calls the step


class StepLog:
    """The optimizer steps of a recording.

    Args:
        own: returns the id() of each parameter of the model.
    """

    def __init__(self, own: Callable[[], set[int]] = set) -> None:
        self._own = own
        self.log = OptimizerLog(OptimizerRecord)
        self.count = 0
        self.backwards = 0  # number of backwards that add to gradients
        # id() of each parameter updated in this training step; None before the first update
        self.updated: set[int] | None = None
        self.ever: set[int] = set()  # id() of each parameter that any step of the run updated
        # For each optimizer that stepped in this training step: id() of its parameters.
        self.held: set[frozenset[int]] = set()
        self._reached: set[int] = set()  # id() of each leaf that a backward of this step reached
        self.running: list[_RunningStep] = []  # outermost first
        self._by_hand = False

    def on_optimizer_step_start(self, event: Stepping) -> None:
        """Count an optimizer step, and record the parameters that it updates."""
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

        The result is None if the optimizer updates flat copies of the model's parameters and copies
        the values back after the step, as ZeRO does. No backward reaches such a copy.
        """
        parameters = parameters_of(optimizer)
        keys = set(map(id, parameters))
        flat = parameters and all(TensorBase.dim(parameter) == 1 for parameter in parameters)
        return None if flat and keys.isdisjoint(self._own() | self._reached) else keys

    def has_untrained_leaves(self) -> bool:
        """Return True if a backward of this step reached a leaf that no optimizer has updated."""
        return not self._reached <= self.ever

    def begin_step(self) -> None:
        """Forget the optimizers and backwards of the last training step."""
        self.updated, self.held, self._reached = None, set(), set()

    def on_backward_end(self, event: Any) -> None:
        """Remember the leaves that a backward reached."""
        self._reached |= event.backward.reached

    def on_optimizer_step_end(self, event: Stepped) -> None:
        """Record that the optimizer step has ended."""
        self.log.on_optimizer_step_end(event)
        for i, step in enumerate(self.running):
            if step.optimizer is event.optimizer:
                del self.running[i:]
                return

    def step_by_hand(self) -> None:
        """Record that the program changed a parameter whose gradient it had read."""
        self._by_hand = True

    def begin_backward(self, *, accumulates: bool) -> int:
        """Return the number of optimizer steps before this backward.

        Updates by hand since the last backward count as one step.

        Args:
            accumulates: True if the backward adds to gradients.
        """
        self.backwards += accumulates
        self.count += self._by_hand
        self._by_hand = False
        return self.count

    def is_own_call(self, frame: FrameType | None) -> bool:
        """Return True if `frame` runs code of an optimizer's step, but not the step's closure."""
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
        self.running = []  # a step that raised an exception has no end event
        return False


def closure_code(args: Iterable[Any]) -> CodeType | None:
    """Return the code object of the closure among an optimizer step's arguments, or None."""
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
        """Remember the GradScaler if this multiplication scales the loss."""
        code = event.frame.f_code
        if code.co_name in SCALING and code in SCALING.values():
            self._scaler = event.frame.f_locals["self"]

    def on_graph_read(self, live: object) -> None:
        """Forget the GradScaler, because the graph of the scaled loss was read."""
        self._scaler = None

    def scale(self) -> Probe | None:
        """Return a probe of the GradScaler's factor; None if the loss was not scaled."""
        return None if self._scaler is None else loss_scale(self._scaler)
