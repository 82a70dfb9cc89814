"""The steps of the optimizers: how many, of which parameters, and is one running.

An optimizer's own code cuts nothing and changes nothing but what its step does. What a closure
runs, that the step was given, is the program's: the calls that it makes are told apart by the
frames that they come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import CodeType, FrameType
from typing import Any

from torch.optim import Optimizer

from ...internals.hooks.optimizers import parameters_of
from ..source_lines import Place
from .zero_grad import ClearedGradients


class _Step:
    """A step that is running."""

    __slots__ = ("closure", "frame", "optimizer", "place")

    def __init__(
        self, optimizer: Optimizer, closure: CodeType | None, frame: FrameType, place: Place | None
    ) -> None:
        self.optimizer = optimizer
        self.closure = closure
        self.frame = frame  # of PyTorch's around the step
        self.place = place


class Steps:
    """The steps of a recording."""

    def __init__(self) -> None:
        self.running: list[_Step] = []
        self.count = 0
        self.updated: set[int] | None = None  # id() of what they updated; None before the first
        self.uncleared: Place | None = None  # where gradients were used a second time
        self._cleared = ClearedGradients()

    def begin(
        self, optimizer: Optimizer, args: Iterable[Any], frame: FrameType, place: Place | None
    ) -> bool:
        """An optimizer steps; does it use gradients that it has used before?"""
        self.count += 1
        self.updated = (self.updated or set()) | {id(p) for p in parameters_of(optimizer)}
        closure = next((code for value in args if (code := _code(value)) is not None), None)
        self.running = [step for step in self.running if _is_running(step, frame)]
        self.running.append(_Step(optimizer, closure, frame, place))
        # What a closure computes is there at the end.
        return closure is None and self._use(optimizer, place)

    def end(self, optimizer: Optimizer) -> bool:
        """It has stepped; has it used, after a closure, gradients that it had used before?"""
        for i, step in enumerate(self.running):
            if step.optimizer is optimizer:
                del self.running[i:]
                return step.closure is not None and self._use(optimizer, step.place)
        return False

    def own(self, frame: FrameType | None) -> bool:
        """Is a call from this frame an optimizer's own, and not its closure's?"""
        closures = {step.closure for step in self.running}
        frames = {id(step.frame) for step in self.running}
        while frame is not None:
            if frame.f_code in closures:
                return False
            if id(frame) in frames:
                return True
            frame = frame.f_back
        self.running = []  # they have raised, of which nothing is told
        return False

    def begin_backward(self) -> None:
        """Backward is about to run."""
        self._cleared.begin()

    def end_backward(self) -> None:
        """Backward has run."""
        self._cleared.end()

    def _use(self, optimizer: Optimizer, place: Place | None) -> bool:
        again = self._cleared.step(optimizer)
        if again:
            self.uncleared = place
        return again


def _is_running(step: _Step, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame is step.frame:
            return True
        frame = frame.f_back
    return False


def _code(closure: Any) -> CodeType | None:
    """The code that runs first when a closure is called."""
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
