"""The seam of modules: hooks on the calls of all, at the same key whenever they are there.

PyTorch counts the keys of its hooks up, and torch.compile looks at them: it would compile a module
again in every recording, and after eight of them leave it uncompiled. `torch.export` refuses such
hooks, so they are off while it runs, and a compiled module warns of them, but not of these.

Private: the dictionaries that hold the hooks, the question whether there are any, and the flag that
says that an export runs (2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as nn_module

from ..dynamo import uncompiled
from .watch import Installation, Watch

_KEY = "graphviz_torch"
_HOOKS: Any = nn_module
_COMPILER: Any = torch.compiler
_any_hook: Any = nn_module._has_any_global_hook
_new: Any = tuple.__new__  # an event from a row of its fields, without a call of Python's


class ModuleBegan(NamedTuple):
    """A module's forward is about to run."""

    module: Any
    args: Any
    frame: FrameType  # that calls its forward


class ModuleEnded(NamedTuple):
    """A module's forward has run."""

    module: Any
    output: Any  # None if it raised
    frame: FrameType  # that called its forward


class ModuleWatch(Watch):
    """Tells of every module's forward, of any thread, until `close()`.

    Args:
        began, ended: take the events.
        first: is it told before those that watch already.
    """

    def __init__(
        self,
        began: Callable[[ModuleBegan], object],
        ended: Callable[[ModuleEnded], object],
        *,
        first: bool = False,
    ) -> None:
        self.began, self.ended, self.first = began, ended, first


def take_off() -> None:
    """From here on no module is watched, and its calls are as without us."""
    _INSTALLATION.suspend()


def take_on() -> None:
    """They are watched again, if anybody watches."""
    _INSTALLATION.refresh()


@uncompiled
def _before(module: Any, args: Any) -> None:
    if not is_dynamo_compiling():
        event = _new(ModuleBegan, (module, args, sys._getframe(1)))
        for watch in _INSTALLATION.watchers:
            watch.began(event)


@uncompiled
def _after(module: Any, args: Any, output: Any) -> None:
    if not is_dynamo_compiling():
        event = _new(ModuleEnded, (module, output, sys._getframe(1)))
        for watch in _INSTALLATION.watchers:
            watch.ended(event)


@uncompiled
def _any_other_hook() -> bool:
    """Are there hooks on all modules beside these."""
    hooks = (known for name, known in vars(_HOOKS).items() if name.startswith("_global_"))
    return any(key != _KEY for known in hooks if isinstance(known, dict) for key in known)


class _Compiler(ModuleType):
    """What `torch.compiler` is while anybody watches: it notices that an export begins and ends."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_is_exporting_flag":
            _INSTALLATION.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)  # what pickles modules does it by their class


def _install() -> None:
    _replace(_COMPILER, "__class__", ModuleType, _Compiler)
    _replace(_HOOKS, "_has_any_global_hook", _any_hook, _any_other_hook)
    if _COMPILER.is_exporting():
        _take_off()
    else:
        _HOOKS._global_forward_pre_hooks[_KEY] = _before
        _HOOKS._global_forward_hooks_always_called[_KEY] = True
        _HOOKS._global_forward_hooks[_KEY] = _after


def _remove() -> None:
    _take_off()
    _replace(_HOOKS, "_has_any_global_hook", _any_other_hook, _any_hook)
    _replace(_COMPILER, "__class__", _Compiler, ModuleType)


def _replace(owner: Any, name: str, old: object, new: object) -> None:
    if getattr(owner, name) is old:  # else somebody else has put theirs there
        setattr(owner, name, new)


def _take_off() -> None:
    _HOOKS._global_forward_pre_hooks.pop(_KEY, None)
    _HOOKS._global_forward_hooks.pop(_KEY, None)
    _HOOKS._global_forward_hooks_always_called.pop(_KEY, None)


_INSTALLATION: Installation[ModuleWatch] = Installation(_install, _remove)
ModuleWatch.installation = _INSTALLATION
