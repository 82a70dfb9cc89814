"""A model that is called once for each sample, on one slice of a tensor after the other.

Counted are outermost calls with gradients, one after the other between two backwards, of one
module on one tensor each: the slices lie side by side in the same memory, and each is one sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...graph.events import IdleCall
from ...internals.functions import TensorBase
from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.modules import ModuleBegan
from ...internals.tensors.memory import storage_id
from ..events.noting import NotingListener
from ..listener import RunBegan
from ..program import Program

_ENOUGH = 8  # calls


@dataclass(slots=True)
class _Run:
    """Calls on slices that lie side by side."""

    module: int  # id()
    memory: int
    shape: tuple[int, ...]
    next: int  # where in memory the next slice begins
    count: int = 1


class SampleCalls(NotingListener):
    """Notes a module that is called once for each sample of a tensor."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._last: _Run | None = None

    def module_began(self, event: ModuleBegan) -> None:
        stack, args = self.program.stack, event.args
        if not stack.is_outermost or len(args) != 1 or type(args[0]) is not Tensor:
            return
        with unseen_calls():
            if not TensorBase._is_view(args[0]) or not torch.is_grad_enabled():
                self._last = None
                return
            shape, start = tuple(args[0].shape), int(TensorBase.storage_offset(args[0]))
            number, memory = TensorBase.numel(args[0]), storage_id(args[0])
        last = self._last
        known = last is not None and last.module == id(event.module) and last.memory == memory
        if last is None or not known or (last.shape, last.next) != (shape, start):
            single = len(shape) in (1, 3) or shape[:1] == (1,)
            new = _Run(id(event.module), memory, shape, start + number)
            self._last = new if single else None
            return
        last.next += number
        last.count += 1
        if last.count >= _ENOUGH:
            idle = IdleCall(what="samples", name=stack.module or type(event.module).__name__)
            self.events.note(idle, self.program.place(event.frame), count=last.count)

    def backward_began(self, event: RunBegan) -> None:
        self._last = None  # a step for each sample is another thing

    def step_ended(self, event: None) -> None:
        super().step_ended(event)
        self._last = None
