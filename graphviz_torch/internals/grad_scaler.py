"""Read the loss scale of a GradScaler without waiting for the device.

`get_scale()` would wait for the device. The private tensor `_scale` is read instead (2.13), hidden
from modes.
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
# Code objects that multiply a loss by the scale. The keys are names, because hashing a code object
# is slow.
SCALING = {part.co_name: part for part in _parts}

_step: CodeType = GradScaler.step.__code__
_MAX_DEPTH = 6  # maximum number of frames between an optimizer's step and `GradScaler.step`


def stepping_scaler(frame: FrameType | None) -> GradScaler | None:
    """Return the enabled scaler that called an optimizer's step, or None.

    Args:
        frame: PyTorch's frame that calls the optimizer's step.
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
    """Return a probe of the current scale; None if there is no scale yet, or if it cannot be read.

    A fake tensor has no memory to read, and reading raises if the device has failed.
    """
    scale: Tensor | None = scaler._scale
    with suppress(RuntimeError):  # raised if the device has failed, which PyTorch reports later
        return None if scale is None else probe(TensorBase.clone, scale)
    return None
