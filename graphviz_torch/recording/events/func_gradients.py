"""Find derivatives of `torch.func` by an argument that the differentiated function ignores."""

from __future__ import annotations

from typing import ClassVar

from ...findings.rules.func_gradients import IgnoredFuncArgument
from ...internals.hooks.func_gradients import ZeroGradients, ZeroGradientWatch
from ..listener import Listener, Watches


class FuncGradients(Listener):
    """Listener that reports gradients of `torch.func` by an argument that a function ignores."""

    needs = ("every_call",)
    watches: ClassVar[Watches] = {"on_zero_gradients": ZeroGradientWatch}

    def on_zero_gradients(self, event: ZeroGradients) -> None:
        found = IgnoredFuncArgument(tensors=event.inputs)
        self.events.note(found, self.program.place(event.frame))
