"""By how much a GradScaler multiplied a loss, without waiting for the device, and seen by no mode.

Private: `get_scale()` would wait; the tensor that it reads is `_scale` (2.13).
"""

from __future__ import annotations

from contextlib import suppress
from types import CodeType, FrameType

from torch import Tensor
from torch.amp import GradScaler

from .functions import TensorBase
from .guards import no_autograd, no_operators
from .tensors.memory import has_memory

_scale: CodeType = GradScaler.scale.__code__
_parts = (_scale, *(part for part in _scale.co_consts if isinstance(part, CodeType)))
# The code that multiplies a loss, by its name: a code object is slow to hash.
SCALING = {part.co_name: part for part in _parts}

_step: CodeType = GradScaler.step.__code__
_DEEP = 6  # frames between an optimizer's step and the scaler's


def stepping_scaler(frame: FrameType | None) -> GradScaler | None:
    """The scaler that called for the step of an optimizer, if one did that scales.

    Args:
        frame: PyTorch's around the step.
    """
    for _ in range(_DEEP):
        if frame is None:
            return None
        if frame.f_code is _step:
            scaler: GradScaler = frame.f_locals["self"]
            return scaler if scaler.is_enabled() else None
        frame = frame.f_back
    return None


def loss_scale(scaler: GradScaler) -> Tensor | None:
    """What it multiplies by now, copied where it is; None where the device has failed.

    None, too, where it has no value, as a fake tensor.
    """
    scale: Tensor | None = scaler._scale
    if scale is None or not has_memory(scale):
        return None
    with suppress(RuntimeError), no_operators(), no_autograd():  # the user is told by others
        return TensorBase.clone(scale)
    return None
