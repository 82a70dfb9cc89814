"""A warning of PyTorch's names the user's line, though a mode or a tensor of ours took the call.

A warning that names the file of one is given once more, with the line that it would have named
without us: so filters by module and by line take it, and it is shown once for each line. A filter
that hides it everywhere but in some module hides it before.

Private: `warnings._showwarnmsg`, which Python calls with each warning that passed the filters (3.10
to 3.14), and the function of PyTorch's between a function and a mode (2.13). Whoever replaces the
first in turn keeps theirs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

from torch import overrides

from .hooks.installation import Installation, Watch

_theirs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # what each of our functions replaced
_warnings: Any = warnings


class WarningLines(Watch):
    """While it is open, warnings that name a method of ours name its caller.

    Args:
        methods: `__torch_function__` of a mode, or `__torch_dispatch__` of a mode or a tensor.
    """

    def __init__(self, *methods: Any) -> None:
        self.codes: set[CodeType] = {method.__code__ for method in methods}


def _replace() -> None:
    current = _warnings._showwarnmsg
    if current not in _theirs:
        ours = _around(current)
        _theirs[ours] = current
        _warnings._showwarnmsg = ours


def _restore() -> None:
    current = _warnings._showwarnmsg
    if current in _theirs:
        _warnings._showwarnmsg = _theirs[current]


def _around(theirs: Callable[[Any], None]) -> Callable[[Any], None]:
    def show(message: Any) -> None:
        codes = {code for watcher in _INSTALLATION.watchers for code in watcher.codes}
        mode: FrameType | None = None
        if message.filename in {code.co_filename for code in codes}:
            mode = sys._getframe(1)
            while mode is not None and mode.f_code not in codes:
                mode = mode.f_back
        frame = _caller(mode, codes)
        if mode is None or frame is None:
            theirs(message)
            return
        # Ours is to forget it: the user's own tells whether it was shown.
        mode.f_globals.get("__warningregistry__", {}).clear()
        warnings.warn_explicit(
            message.message,
            message.category,
            frame.f_code.co_filename,
            frame.f_lineno,
            module=frame.f_globals.get("__name__"),
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
            source=message.source,
        )

    return show


def _caller(frame: FrameType | None, codes: set[CodeType]) -> FrameType | None:
    """Who made the call that a mode's frame is of."""
    while frame is not None and frame.f_code in codes:
        frame = frame.f_back
        if frame is not None and frame.f_code is overrides.handle_torch_function.__code__:
            frame = frame.f_back and frame.f_back.f_back  # the function itself lies between
    return frame


_INSTALLATION: Installation[WarningLines] = Installation(_replace, _restore)
WarningLines.installation = _INSTALLATION
