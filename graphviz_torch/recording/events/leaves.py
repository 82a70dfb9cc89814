"""Leaves that a program makes by hand, of numbers that had a history: backward starts from one."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ...graph.events import LeafBackward, ParameterFreeze
from ...internals.functions import SET_REQUIRES_GRAD, TensorBase
from ...internals.hooks.calls import Called
from ...internals.tensors.weak import Ref
from ..listener import Listener, RunBegan
from ..program import Program
from ..program.source_lines import Place, assigned, source_text

_LEAVES = 256  # that were made by hand and are remembered


class Leaves(Listener):
    """Notes a backward that starts from a leaf, with what made it; and a parameter that is frozen.

    Told are `x.requires_grad = True`, `x.requires_grad_()`, `torch.tensor(x, requires_grad=True)`.
    """

    needs = ("every_call",)
    functions = frozenset((SET_REQUIRES_GRAD, TensorBase.requires_grad_, torch.tensor))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._leaves: dict[int, tuple[Ref, Place | None, str]] = {}

    def called(self, event: Called) -> None:
        func, args, kwargs, result, frame, _, _ = event
        if self.program.steps.own(frame):
            return
        kwargs = kwargs or {}
        if func is torch.tensor:
            wanted, tensor, name = kwargs.get("requires_grad"), result, "torch.tensor"
        else:
            tensor, name = args[0], "requires_grad_" if result is not None else "requires_grad"
            wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
        parameter = isinstance(tensor, torch.nn.Parameter)
        if not wanted and parameter:
            self.events.note(ParameterFreeze(), self.program.place(frame))
        if wanted and not parameter and tensor.is_leaf:
            place = self.program.place(frame)
            self._leaves[id(tensor)] = Ref(tensor), place, name
            while len(self._leaves) > _LEAVES:
                del self._leaves[next(iter(self._leaves))]

    def backward_began(self, event: RunBegan) -> None:
        self._look_at(event.outputs, event.frame)

    def _look_at(self, outputs: Sequence[Any], frame: FrameType | None) -> None:
        """Is what backward starts from a leaf?"""
        for tensor in outputs:
            if not isinstance(tensor, Tensor) or tensor.grad_fn is not None:
                continue
            if any(tensor is parameter for _, parameter in self.program.parameters()):
                continue
            label = self.program.label(tensor, frame)
            known = self._leaves.get(id(tensor))
            if known is not None and known[0]() is tensor:
                _, place, name = known
            else:
                place, name = assigned(frame, label), ""
                if isinstance(tensor, torch.nn.Parameter):
                    name = "nn.Parameter"
                elif "Variable(" in source_text(place):
                    name = "Variable"
            self.events.note(LeafBackward(label=label, maker=name), place, leaves=[id(tensor)])
