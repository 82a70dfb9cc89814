"""Hook the calls of one module, through its class.

A hook on the module itself would be copied and saved with it, and global module hooks slow down
every call of every module; a class is neither copied nor saved. Traced and compiled calls are not
hooked. For a Lightning module `training_step`, which contains forward and loss, is hooked as well;
not with manual optimization, where it must not be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any

import torch
from torch.compiler import is_compiling

from ...internals.frames import hide_frame
from ...internals.recursion import RecursionRoom

# Called with method, args and kwargs before a call; the result is passed to `Ended`.
Began = Callable[[str, tuple[Any, ...], dict[str, Any]], object]
Ended = Callable[[Any, Any], None]  # called with the result of `Began` and of the call


class ModelCalls:
    """Passes on the calls of a module in the opening thread, until `close()`.

    Args:
        model: the module.
        began: called before each call.
        ended: called after each call that returned.
    """

    def __init__(self, model: torch.nn.Module, began: Began, ended: Ended) -> None:
        self.model, self.began, self.ended = model, began, ended
        self.thread = 0

    def open(self) -> None:
        """Add a hook to the class of the module, for calls from this thread."""
        kind = type(self.model)
        self.thread = get_ident()
        if isinstance(self.model, torch.jit.ScriptModule):
            return
        if kind not in _WATCHES:
            _WATCHES[kind] = []
            _ROOM.open()
            for name in _methods(self.model):
                _ORIGINALS[kind, name] = vars(kind).get(name)
                setattr(kind, name, _make_hooked(kind, name))
        if self not in _WATCHES[kind]:
            _WATCHES[kind] = [*_WATCHES[kind], self]

    def close(self) -> None:
        """Remove the hook, if no other module of the class needs it."""
        kind = type(self.model)
        rest = [watch for watch in _WATCHES.get(kind, ()) if watch is not self]
        if rest:
            _WATCHES[kind] = rest
        elif _WATCHES.pop(kind, None) is not None:
            for owner, name in [key for key in _ORIGINALS if key[0] is kind]:
                original = _ORIGINALS.pop((owner, name))
                if original is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, original)
            if not _WATCHES:
                _ROOM.close()


_WATCHES: dict[type, list[ModelCalls]] = {}  # open hooks, by class of the module
_ORIGINALS: dict[tuple[type, str], Any] = {}  # replaced methods, by class and name
_ROOM = RecursionRoom()  # for the method around `__call__`


def _methods(model: Any) -> tuple[str, ...]:
    whole = getattr(model, "automatic_optimization", None) is True and hasattr(
        type(model), "training_step"
    )
    return ("__call__", "training_step") if whole else ("__call__",)


def _make_hooked(kind: Any, name: str) -> Callable[..., Any]:
    @wraps(getattr(kind, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = _ORIGINALS.get((kind, name))
        call = getattr(super(kind, self), name) if original is None else original.__get__(self)
        if is_compiling():
            return call(*args, **kwargs)
        for watch in _WATCHES.get(kind, ()):
            if watch.model is self and watch.thread == get_ident():
                break
        else:
            return call(*args, **kwargs)
        given = watch.began(name, args, kwargs)
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        watch.ended(given, result)
        return result

    return method
