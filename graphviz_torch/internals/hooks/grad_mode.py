"""Find the user's line that has switched gradients off.

`torch.no_grad()` and `torch.set_grad_enabled(False)` call `torch._C._set_grad_enabled`, which
function modes see. `torch.inference_mode` does not.

Uses the private methods of the context managers that make this call (2.13).
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch.utils import _contextlib

from ...graph.immutable import NamedTuple
from ..frames import OTHER, OWN, CodePosition, code_owner

# "switched_off" is a plain call of set_grad_enabled(False), without a `with` block.
GradSwitch = Literal["no_grad", "set_grad_enabled", "switched_off", "enable_grad"]


def _code(method: Any) -> CodeType:
    code: CodeType = method.__code__
    return code


_CALL = _code(torch.set_grad_enabled.__init__)
_ENTER: dict[CodeType, GradSwitch] = {
    _code(torch.no_grad.__enter__): "no_grad",
    _code(torch.enable_grad.__enter__): "enable_grad",
}
_EXIT = {_code(each.__exit__) for each in (torch.no_grad, torch.enable_grad)}
_EXIT.add(_code(torch.set_grad_enabled.__exit__))
_BLOCK = _code(torch.set_grad_enabled.__enter__)  # repeats the switch that `__init__` made
_DECORATORS = _contextlib.__file__
_MAX_NESTED = 64


class Switch(NamedTuple):
    """A block or a call that switches gradients off or on."""

    by: GradSwitch
    place: CodePosition | None  # the user's line; None if a library made the switch


class GradModeSwitches:
    """The active blocks and calls that have switched gradients off or on."""

    def __init__(self) -> None:
        self._in_force: list[Switch] = []  # outermost first

    @property
    def innermost(self) -> Switch | None:
        """The innermost observed block or call that switches gradients on or off now, or None."""
        return self._in_force[-1] if self._in_force else None

    def note(self, enabled: bool, frame: FrameType) -> None:
        """Record that gradients are about to be switched on or off.

        Args:
            enabled: the argument of `torch._C._set_grad_enabled`.
            frame: the frame that calls it.
        """
        code = frame.f_code
        if code is _CALL and frame.f_back is not None:  # `no_grad` uses set_grad_enabled
            outer = frame.f_back
            if outer.f_code in _ENTER or outer.f_code in _EXIT:
                frame, code = outer, outer.f_code
        if code in _EXIT:
            if self._in_force:
                self._in_force.pop()
        elif code in _ENTER:
            self._enter(_ENTER[code], frame.f_back)
        elif code is _BLOCK:
            if self.innermost is not None and self.innermost.by == "switched_off":
                self._in_force[-1] = self.innermost._replace(by="set_grad_enabled")
        elif code is _CALL:
            self._call(enabled, frame.f_back)

    def _call(self, enabled: bool, frame: FrameType | None) -> None:
        """Record `set_grad_enabled(enabled)`, either a plain call or the start of a block."""
        if frame is None or code_owner(frame.f_code.co_filename) == OTHER:
            return  # an optimizer made the call, and restores the mode afterwards
        last = self.innermost
        if not enabled:
            self._enter("switched_off", frame)
        elif last is not None and last.by == "switched_off":
            self._in_force.pop()
        elif last is not None:
            self._enter("enable_grad", frame)

    def _enter(self, by: GradSwitch, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename == _DECORATORS:
            frame = frame.f_back
        own = frame is not None and code_owner(frame.f_code.co_filename) == OWN
        place = (frame.f_code, frame.f_lasti) if own and frame is not None else None
        if len(self._in_force) < _MAX_NESTED:
            self._in_force.append(Switch(by, place))
