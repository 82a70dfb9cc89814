"""Watch gradients of `torch.func` that are zero because the function ignores its argument.

`torch.func.grad` and `vjp` call the private `_autograd_grad`. If no result requires a gradient, it
returns zeros without calling the engine (2.13). It is replaced while a watch is open.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch._functorch import eager_transforms

from ...graph.immutable import NamedTuple
from ..dynamo import not_compiled_itself
from ..frames import hide_frame
from .watch import Replacement, Watch

_functorch: Any = torch._C._functorch


class ZeroGradients(NamedTuple):
    """A first derivative that is zero, because no result depends on the argument."""

    inputs: int  # number of tensors to differentiate with respect to
    frame: FrameType | None  # PyTorch's frame that computes the derivative; None in the log


class ZeroGradientWatch(Watch):
    """A watch on derivatives of `torch.func` by an argument that the function ignores.

    Args:
        on_zero_gradients: called with the event, in the thread that opened the watch.
    """

    def __init__(self, on_zero_gradients: Callable[[ZeroGradients], object]) -> None:
        self.on_zero_gradients = on_zero_gradients


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @not_compiled_itself
    def autograd_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        watches = [w for w in _INSTALLATION.watchers if w.thread == threading.get_ident()]
        first_order = bool(watches) and _is_first_order()
        if first_order and not any(each.requires_grad for each in outputs):
            for watch in watches:
                watch.on_zero_gradients(ZeroGradients(len(inputs), sys._getframe(1)))
        try:
            return original(outputs, inputs, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return autograd_grad


def _is_first_order() -> bool:
    """Return True for a derivative outside of all others, of a function without derivatives."""
    stack = [each.key() for each in _functorch.get_interpreter_stack() or ()]
    kinds = _functorch.TransformType
    depth = stack.count(kinds.Grad) + stack.count(kinds.Jvp)
    nested, _state.nested = getattr(_state, "nested", False), depth > 1
    return depth == 1 and not nested


_state = threading.local()  # .nested: True if the last derivative was inside another one
_INSTALLATION = Replacement[ZeroGradientWatch](
    lambda: [(eager_transforms, "_autograd_grad", _wrap)]
)
ZeroGradientWatch.installation = _INSTALLATION
