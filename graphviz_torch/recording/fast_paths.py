"""Layers that PyTorch computes in one kernel, but only where no function mode watches.

`nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.TransformerEncoder` ask that in eval
mode, where nothing needs a gradient. So the mode that sees a recording's calls leaves for them, and
what it would have told of cuts is told of the layer as one call.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch import nn

from ..internals.frames import variables
from ..internals.hooks.dispatch import sequence_number
from ..internals.hooks.modes import FUNCTIONS, leave, unseen_calls
from ..internals.tensors.pytree import tensors
from .calls import Calls
from .cuts.cuts import Cuts

_LAYERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class FastPaths:
    """Takes the mode away before such a layer runs, and brings it back after.

    Args:
        calls: the mode.
        cuts: are told of the layer's call.
    """

    def __init__(self, calls: Calls, cuts: Cuts) -> None:
        self._calls = calls
        self._cuts = cuts
        self.layer: nn.Module | None = None  # that runs without the mode

    def before(self, module: nn.Module, frame: FrameType) -> None:
        """A module's forward is about to be called from `frame`."""
        if self.layer is None and isinstance(module, _LAYERS) and not module.training:
            with unseen_calls():
                if not _may_be_taken(module, frame):
                    return
            # Where another mode watches, PyTorch would not take that way without this one either.
            modes = FUNCTIONS.now()
            if self._calls in modes and all(isinstance(mode, Calls) for mode in modes):
                self.layer = module
                leave(self._calls, FUNCTIONS)

    def after(self, module: nn.Module, output: Any, frame: FrameType) -> None:
        """The layer has run; `output` is None if it raised."""
        self.layer = None
        FUNCTIONS.push(self._calls)
        if output is not None:
            number = sequence_number()
            args, kwargs = variables(frame, "args", "kwargs")
            given = (*(args or ()), *module.parameters()), kwargs
            self._cuts.see(type(module).forward, given, (number, number), output, frame)


def _may_be_taken(layer: nn.Module, frame: FrameType) -> bool:
    """Needs nothing a gradient that the layer takes, so that it makes no node."""
    given = tensors(*variables(frame, "args", "kwargs"))
    if isinstance(layer, nn.TransformerEncoder) and len(given) < 2:
        return False  # without a mask each of its layers asks for itself
    asked = [*given, *layer.parameters()] if torch.is_grad_enabled() else ()
    return not any(tensor.requires_grad for tensor in asked)
