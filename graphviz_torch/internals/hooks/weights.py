"""Watch how parameters get their first values: `load_state_dict`, and the functions of `nn.init`.

Some functions of `nn.init` notify function modes of their calls. These are replaced only after the
last recorded step, when a recording has no function mode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from threading import get_ident
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...graph.immutable import NamedTuple
from ..dynamo import not_compiled_itself
from ..frames import hide_frame
from .watch import Replacement, Row, Watch

_INITIALIZERS: dict[str, Any] = {
    name: function
    for name, function in vars(torch.nn.init).items()
    if name.endswith("_") and not name.startswith("_") and isinstance(function, FunctionType)
}
# The initializers that function modes see.
OVERRIDABLE = {
    name: function
    for name, function in _INITIALIZERS.items()
    if "handle_torch_function" in function.__code__.co_names
}


class Initializing(NamedTuple):
    """A function of `nn.init` that is about to run, or has returned."""

    tensor: Tensor
    ended: bool
    frame: FrameType  # the frame that called the function


class StateLoaded(NamedTuple):
    """A `Module.load_state_dict` that has returned."""

    module: Module
    state: Mapping[str, Any]
    missing: list[str]  # names of the module for which the state has no entry
    unexpected: list[str]  # keys of the state that the module does not have
    frame: FrameType  # the frame that called load_state_dict


class InitializationWatch(Watch):
    """A watch on the functions of `nn.init` that no function mode sees.

    Args:
        on_initialize: called before and after each call, in the thread that opened the watch.
    """

    def __init__(self, on_initialize: Callable[[Initializing], object]) -> None:
        self.on_initialize = on_initialize


class OverridableInitializationWatch(InitializationWatch):
    """A watch on the functions of `nn.init` that function modes see, too."""


class LoadStateWatch(Watch):
    """A watch on the calls of `Module.load_state_dict` that raise no exception.

    Args:
        on_load: called with the event, in the thread that opened the watch.
    """

    def __init__(self, on_load: Callable[[StateLoaded], object]) -> None:
        self.on_load = on_load


def _wrap_initializer(kind: type[InitializationWatch]) -> Callable[[Any], Any]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @not_compiled_itself
        @wraps(original)
        def initialize(*args: Any, **kwargs: Any) -> Any:
            tensor: Any = args[0] if args else kwargs.get("tensor")
            watches = [w for w in kind.installation.watchers if w.thread == get_ident()]
            watches = watches if type(tensor) is torch.nn.Parameter else []
            for watch in watches:
                watch.on_initialize(Initializing(tensor, False, sys._getframe(1)))
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            for watch in watches:
                watch.on_initialize(Initializing(tensor, True, sys._getframe(1)))
            return result

        return initialize

    return wrap


def _wrap_load(original: Callable[..., Any]) -> Callable[..., Any]:
    @not_compiled_itself
    @wraps(original)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, state_dict, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        missing, unexpected = result if isinstance(result, tuple) else ([], [])
        for watch in _LOADS.watchers:
            if watch.thread == get_ident():
                frame = sys._getframe(1)
                watch.on_load(StateLoaded(self, state_dict, missing, unexpected, frame))
        return result

    return load_state_dict


def _install(kind: type[InitializationWatch], names: Iterable[str]) -> None:
    wrap = _wrap_initializer(kind)
    rows: list[Row] = [(torch.nn.init, name, wrap) for name in names]
    kind.installation = Replacement[InitializationWatch](lambda: rows)


_install(InitializationWatch, _INITIALIZERS.keys() - OVERRIDABLE.keys())
_install(OverridableInitializationWatch, OVERRIDABLE)
_LOADS = Replacement[LoadStateWatch](lambda: [(Module, "load_state_dict", _wrap_load)])
LoadStateWatch.installation = _LOADS
