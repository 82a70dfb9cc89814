"""Read the loss scale of a GradScaler without synchronizing and without being seen by modes.

`get_scale()` would synchronize with the device, so the private tensor `_scale` is read (2.13).
"""

from __future__ import annotations

from contextlib import suppress
from types import CodeType, FrameType

from torch import Tensor
from torch.amp import GradScaler

from .functions import TensorBase
from .probes import Probe, probe

_scale: CodeType = GradScaler.scale.__code__
_parts = (_scale, *(part for part in _scale.co_consts if isinstance(part, CodeType)))
# Code objects that multiply a loss by the scale, by name, since a code object is slow to hash.
SCALING = {part.co_name: part for part in _parts}

_step: CodeType = GradScaler.step.__code__
_MAX_DEPTH = 6  # frames between an optimizer's step and the scaler's


def stepping_scaler(frame: FrameType | None) -> GradScaler | None:
    """Return the enabled scaler that called an optimizer's step, or None.

    Args:
        frame: PyTorch's frame around the step.
    """
    for _ in range(_MAX_DEPTH):
        if frame is None:
            return None
        if frame.f_code is _step:
            scaler: GradScaler = frame.f_locals["self"]
            return scaler if scaler.is_enabled() else None
        frame = frame.f_back
    return None


def loss_scale(scaler: GradScaler) -> Probe | None:
    """Return a probe of the current scale.

    Returns None if the scale has no memory (a fake tensor), or if the device has failed.
    """
    scale: Tensor | None = scaler._scale
    with suppress(RuntimeError):  # PyTorch's own call reports a failed device
        return None if scale is None else probe(TensorBase.clone, scale)
    return None
