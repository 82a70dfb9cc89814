"""Watch each call that switches autograd's anomaly mode on or off.

`torch.autograd.detect_anomaly` and `set_detect_anomaly` call `torch.set_anomaly_enabled`, which is
replaced while a watch is open. This function is not documented (2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

import torch
from torch.autograd import detect_anomaly, set_detect_anomaly

from ...graph.immutable import NamedTuple
from ..dynamo import not_compiled_itself
from ..frames import hide_frame
from .watch import Replacement, Watch

_EXITS = {each.__exit__.__code__ for each in (detect_anomaly, set_detect_anomaly)}


class AnomalySwitch(NamedTuple):
    """Anomaly mode has been set, to the same or to another value."""

    enabled: bool
    was_enabled: bool  # the value before
    restores: bool  # True at the end of a `with` block, which restores the value before the block
    frame: FrameType | None  # the frame that made the call; None in the log


class AnomalyWatch(Watch):
    """A watch on the calls that set anomaly mode, in any thread.

    Args:
        on_switch: called with the event after the call has returned.
    """

    def __init__(self, on_switch: Callable[[AnomalySwitch], object]) -> None:
        self.on_switch = on_switch


def _wrap(original: Callable[..., None]) -> Callable[..., None]:
    @not_compiled_itself
    @wraps(original)
    def set_anomaly_enabled(*args: Any, **kwargs: Any) -> None:
        was_enabled = torch.is_anomaly_enabled()
        try:
            original(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        frame = sys._getframe(1)
        restores = frame.f_code in _EXITS
        event = AnomalySwitch(torch.is_anomaly_enabled(), was_enabled, restores, frame)
        for watch in _INSTALLATION.watchers:
            watch.on_switch(event)

    return set_anomaly_enabled


_INSTALLATION = Replacement[AnomalyWatch](lambda: [(torch, "set_anomaly_enabled", _wrap)])
AnomalyWatch.installation = _INSTALLATION
