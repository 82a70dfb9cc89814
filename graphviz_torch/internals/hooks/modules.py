"""Hooks on the calls of all modules, at the same key whenever they are there.

PyTorch counts the keys of its hooks up, and torch.compile looks at them: it would compile a module
again in every recording, and after eight of them leave it uncompiled.

Private: the dictionaries that hold the hooks (2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as nn_module

from ..dynamo import uncompiled
from .installation import Installation

Before = Callable[[Any, Any, FrameType], None]
After = Callable[[Any, Any, FrameType], None]

_KEY = "graphviz_torch"
_HOOKS: Any = nn_module


class ModuleWatch:
    """Calls `before` and `after` around every module's forward, of any thread, until `close()`.

    Args:
        before: takes the module, its arguments, and the frame that calls its forward.
        after: takes the module, its output, which is None if it raised, and the same frame.
    """

    def __init__(self, before: Before, after: After) -> None:
        self.before, self.after = before, after

    def open(self) -> None:
        """Watch from now on."""
        _INSTALLATION.add(self)

    def close(self) -> None:
        """Watch no more, if it does."""
        _INSTALLATION.discard(self)

    def __enter__(self) -> ModuleWatch:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@uncompiled
def _before(module: Any, args: Any) -> None:
    if not is_dynamo_compiling():
        frame = sys._getframe(1)
        for watch in _INSTALLATION.watchers:
            watch.before(module, args, frame)


@uncompiled
def _after(module: Any, args: Any, output: Any) -> None:
    if not is_dynamo_compiling():
        frame = sys._getframe(1)
        for watch in _INSTALLATION.watchers:
            watch.after(module, output, frame)


def _install() -> None:
    _HOOKS._global_forward_pre_hooks[_KEY] = _before
    _HOOKS._global_forward_hooks_always_called[_KEY] = True
    _HOOKS._global_forward_hooks[_KEY] = _after


def _remove() -> None:
    _HOOKS._global_forward_pre_hooks.pop(_KEY, None)
    _HOOKS._global_forward_hooks.pop(_KEY, None)
    _HOOKS._global_forward_hooks_always_called.pop(_KEY, None)


_INSTALLATION: Installation[ModuleWatch] = Installation(_install, _remove)
