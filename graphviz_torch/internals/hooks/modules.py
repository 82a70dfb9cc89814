"""Watch the forward of every module, through global hooks registered under a constant key.

PyTorch gives each hook a new number, and torch.compile guards on these numbers. With new numbers it
would recompile a module in each recording, and give up after eight recompilations. `torch.export`
refuses global hooks, so ours are removed while it runs. A compiled module warns about global hooks;
the check for them is replaced so that it ignores ours.

A module call has one frame more while modules are watched. A program that nearly reaches
`sys.getrecursionlimit()` would therefore exceed it. With Python 3.11 and PyTorch 2.13, a nested
module's call has four frames, and five frames if it is watched. Python's recursion limit is
therefore raised for the frames that a watch adds.

Uses private API: the dictionaries of global hooks, the check whether there are any, and the flag
that an export is running (2.13).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as nn_module

from ...graph.immutable import NamedTuple
from ..dynamo import not_compiled
from .watch import Installation, Watch

_FRAMES = 4  # number of frames of a module call without a watch
_BASE = 64  # number of our own frames inside the deepest call

_lock = threading.Lock()
_open: set[RaisedRecursionLimit] = set()
_limit = 0  # the program's own limit
_raised = 0  # the limit that we set last


class RaisedRecursionLimit:
    """A raised recursion limit, from `open` to `close`, unless the program sets a limit itself.

    Each open instance raises the limit by one frame for each module call that fits into the
    program's limit.

    >>> before, raised = sys.getrecursionlimit(), RaisedRecursionLimit()
    >>> raised.open()
    >>> sys.getrecursionlimit() - before == before // 4 + 64
    True
    >>> raised.close()
    >>> sys.getrecursionlimit() == before
    True
    """

    def open(self) -> None:
        """Raise the limit, unless this instance is already open."""
        with _lock:
            _note_own_limit()
            _open.add(self)
            _set_limit()

    def close(self) -> None:
        """Lower the limit again, if this instance is open."""
        with _lock:
            _open.discard(self)
            _set_limit()


def _note_own_limit() -> None:
    """Store the recursion limit of the program before the first instance raises it."""
    global _limit, _raised
    # A limit that we set is still there if `close` could not lower it.
    if not _open and sys.getrecursionlimit() != _raised:
        _limit = _raised = sys.getrecursionlimit()


def _set_limit() -> None:
    global _raised
    if sys.getrecursionlimit() == _raised:  # otherwise the program has set another limit
        limit = _limit + len(_open) * (_limit // _FRAMES + _BASE)
        with suppress(RecursionError):  # raised if the stack is already deeper than the new limit
            sys.setrecursionlimit(limit)
            _raised = limit


_KEY = "graphviz_torch"
_HOOKS: Any = nn_module
_COMPILER: Any = torch.compiler
_any_hook: Any = nn_module._has_any_global_hook
# A module's call has one frame more while a watch is open.
_RECURSION_LIMIT = RaisedRecursionLimit()
_new: Any = tuple.__new__  # creates an event without a Python-level call


class ModuleBegan(NamedTuple):
    """A module's forward that is about to run."""

    module: Any
    args: Any
    frame: FrameType  # the frame that calls the forward


class ModuleEnded(NamedTuple):
    """A module's forward that has run."""

    module: Any
    output: Any  # None if the forward raised
    frame: FrameType  # the frame that called the forward


class ModuleWatch(Watch):
    """A watch on every module's forward, in any thread.

    Args:
        on_begin, on_end: called with the event.
        first: True to notify this watch before those that are already open.
    """

    def __init__(
        self,
        on_begin: Callable[[ModuleBegan], object],
        on_end: Callable[[ModuleEnded], object],
        *,
        first: bool = False,
    ) -> None:
        self.on_begin, self.on_end, self.first = on_begin, on_end, first


@not_compiled
def _notify_before(module: Any, args: Any) -> None:
    if not is_dynamo_compiling():
        event = _new(ModuleBegan, (module, args, sys._getframe(1)))
        for watch in _INSTALLATION.watchers:
            watch.on_begin(event)


@not_compiled
def _notify_after(module: Any, args: Any, output: Any) -> None:
    if not is_dynamo_compiling():
        event = _new(ModuleEnded, (module, output, sys._getframe(1)))
        for watch in _INSTALLATION.watchers:
            watch.on_end(event)


@not_compiled
def _any_other_hook() -> bool:
    """Return True if the program has installed global module hooks."""
    hooks = (known for name, known in vars(_HOOKS).items() if name.startswith("_global_"))
    return any(key != _KEY for known in hooks if isinstance(known, dict) for key in known)


class _Compiler(ModuleType):
    """Class of the module object `torch.compiler` while a watch is open.

    Its `__setattr__` notices when an export starts or ends.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_is_exporting_flag":
            _INSTALLATION.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        # The module is pickled by its name, because it has its original class when no watch is
        # open.
        return import_module, (self.__name__,)


def _install() -> None:
    _RECURSION_LIMIT.open()
    _replace(_COMPILER, "__class__", ModuleType, _Compiler)
    _replace(_HOOKS, "_has_any_global_hook", _any_hook, _any_other_hook)
    if _COMPILER.is_exporting():
        _remove_hooks()
    else:
        _HOOKS._global_forward_pre_hooks[_KEY] = _notify_before
        _HOOKS._global_forward_hooks_always_called[_KEY] = True
        _HOOKS._global_forward_hooks[_KEY] = _notify_after


def _remove() -> None:
    _remove_hooks()
    _replace(_HOOKS, "_has_any_global_hook", _any_other_hook, _any_hook)
    _replace(_COMPILER, "__class__", _Compiler, ModuleType)
    _RECURSION_LIMIT.close()


def _replace(owner: Any, name: str, old: object, new: object) -> None:
    if getattr(owner, name) is old:  # otherwise other code has replaced the attribute
        setattr(owner, name, new)


def _remove_hooks() -> None:
    _HOOKS._global_forward_pre_hooks.pop(_KEY, None)
    _HOOKS._global_forward_hooks.pop(_KEY, None)
    _HOOKS._global_forward_hooks_always_called.pop(_KEY, None)


_INSTALLATION: Installation[ModuleWatch] = Installation(_install, _remove)
ModuleWatch.installation = _INSTALLATION
