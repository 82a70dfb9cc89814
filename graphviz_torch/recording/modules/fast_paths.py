"""Layers that PyTorch computes in one kernel, but only where no function mode watches.

`nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.TransformerEncoder` ask that in eval
mode, where nothing needs a gradient. So the mode that sees a recording's calls leaves for them, and
what it would have told of cuts is told of the layer as one call.
"""

from __future__ import annotations

from types import FrameType

import torch
from torch import nn

from ...internals.frames import variables
from ...internals.hooks.calls import Called, CallWatch
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.modes import FUNCTIONS, leave
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.tensors.pytree import tensors
from ..listener import Listener
from ..program import Program

_LAYERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class FastPaths(Listener):
    """Takes the mode away before such a layer runs, and brings it back after."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._layer: nn.Module | None = None  # that runs without the mode
        self._calls: CallWatch | None = None  # the mode, which tells of the layer as of one call

    def module_began(self, event: ModuleBegan) -> None:
        module = event.module
        if (
            self._layer is None
            and isinstance(module, _LAYERS)
            and not getattr(module, "training", True)
        ):
            if not _may_be_taken(module, event.frame):
                return
            # Where another mode watches, PyTorch would not take that way without this one either.
            modes = [mode for mode in FUNCTIONS.now() if isinstance(mode, CallWatch)]
            own = [mode for mode in modes if mode.program is self.program.key]
            if own and len(modes) == len(FUNCTIONS.now()):
                self._layer, self._calls = module, own[0]
                leave(own[0], FUNCTIONS)

    def module_ended(self, event: ModuleEnded) -> None:
        layer, calls = self._layer, self._calls
        if layer is None or calls is None or event.module is not layer:
            return
        output, frame = event.output, event.frame
        self._layer = self._calls = None
        FUNCTIONS.push(calls)
        if output is not None:
            number = sequence_number()
            args, kwargs = variables(frame, "args", "kwargs")
            given = (*(args or ()), *layer.parameters())
            call = type(layer).forward, given, kwargs, output, frame, number, number
            calls.tell(Called(*call))


def _may_be_taken(layer: nn.Module, frame: FrameType) -> bool:
    """Needs nothing a gradient that the layer takes, so that it makes no node."""
    given = tensors(*variables(frame, "args", "kwargs"))
    if isinstance(layer, nn.TransformerEncoder) and len(given) < 2:
        return False  # without a mask each of its layers asks for itself
    asked = [*given, *layer.parameters()] if torch.is_grad_enabled() else ()
    return not any(tensor.requires_grad for tensor in asked)
