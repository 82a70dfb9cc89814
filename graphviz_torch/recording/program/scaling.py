"""By how much a loss is multiplied before its backward (AMP), so that small gradients survive."""

from __future__ import annotations

import torch
from torch import Tensor

from ...internals.functions import TensorBase
from ...internals.grad_scaler import SCALING, loss_scale
from ...internals.hooks.calls import Called


class Scaling:
    """The scaler that has multiplied a loss since the last backward."""

    functions = frozenset((TensorBase.mul, TensorBase.__mul__, TensorBase.__rmul__, torch.mul))

    def __init__(self) -> None:
        self._scaler: torch.amp.GradScaler | None = None

    def called(self, event: Called) -> None:
        """A product: did a scaler compute it?"""
        code = event.frame.f_code
        if code.co_name in SCALING and code in SCALING.values():
            self._scaler = event.frame.f_locals["self"]

    def graph_read(self, live: object) -> None:
        """The backward of that loss begins."""
        self._scaler = None

    def scale(self) -> Tensor | None:
        """What the loss was multiplied by, on its device; None where it was not."""
        return None if self._scaler is None else loss_scale(self._scaler)
