"""Watch `zero_grad` of modules and optimizers as one event.

`zero_grad` accesses `.grad` several times for each parameter, and a function mode sees each access.
The modes of a recording are therefore removed while `zero_grad` runs, if there are no other modes
and no listener needs the accesses. Inside compiled regions, PyTorch's own functions are restored,
so that `torch.compile` compiles them and not ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from types import FrameType
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from ...graph.immutable import NamedTuple
from ..frames import hide_frame
from .calls import CallWatch
from .modes import FUNCTIONS, arrange, function_mode_count, movable
from .watch import Replacement, Watch


class GradientsCleared(NamedTuple):
    """A `zero_grad` that has returned."""

    by_optimizer: bool  # True for an optimizer's `zero_grad`, False for a module's
    frame: FrameType  # the frame that called `zero_grad`


class ZeroGradWatch(Watch):
    """A watch on the calls of `zero_grad` whose accesses to `.grad` no mode sees.

    Args:
        on_clear: called with the event, in the thread that opened the watch.
    """

    def __init__(self, on_clear: Callable[[GradientsCleared], object]) -> None:
        self.on_clear = on_clear


def _wrap(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        modes = movable(FUNCTIONS)
        known = all(isinstance(mode, CallWatch) and not mode.sees_zero_grad for mode in modes)
        if not (set_to_none and modes and known) or len(modes) < function_mode_count():
            original(self, set_to_none)
            return
        arrange(FUNCTIONS, [])
        try:
            original(self, set_to_none)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            arrange(FUNCTIONS, modes)
        event = GradientsCleared(isinstance(self, Optimizer), sys._getframe(1))
        for watch in _INSTALLATION.watchers:
            if watch.thread == get_ident():
                watch.on_clear(event)

    return zero_grad


_INSTALLATION = Replacement[ZeroGradWatch](
    lambda: [(kind, "zero_grad", _wrap) for kind in (Module, Optimizer)]
)
ZeroGradWatch.installation = _INSTALLATION
