"""A patch point for the calls of one module, through its class.

A hook on the module would be copied and saved with it, and global module hooks cost every call of
every module; a class is neither copied nor saved. Traced and compiled calls pass unchanged. A
Lightning module is also called through `training_step`, which contains forward and loss; not with
manual optimization, where it must not be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any

import torch
from torch.compiler import is_compiling

from ...internals.frames import hide_frame

# The method and the arguments; gives what `ended` takes.
Began = Callable[[str, tuple[Any, ...], dict[str, Any]], object]
Ended = Callable[[Any, Any], None]  # what `began` gave, the result


class ModelCalls:
    """Receives the calls of a module in the opening thread, until `close()`.

    Args:
        model: whose calls.
        began, ended: take them.
    """

    def __init__(self, model: torch.nn.Module, began: Began, ended: Ended) -> None:
        self.model, self.began, self.ended = model, began, ended
        self.thread = 0

    def open(self) -> None:
        """Start watching this thread."""
        kind = type(self.model)
        self.thread = get_ident()
        if isinstance(self.model, torch.jit.ScriptModule):
            return
        if kind not in _WATCHES:
            _WATCHES[kind] = []
            for name in _methods(self.model):
                _THEIRS[kind, name] = vars(kind).get(name)
                setattr(kind, name, _around(kind, name))
        if self not in _WATCHES[kind]:
            _WATCHES[kind] = [*_WATCHES[kind], self]

    def close(self) -> None:
        """Stop watching."""
        kind = type(self.model)
        rest = [watch for watch in _WATCHES.get(kind, ()) if watch is not self]
        if rest:
            _WATCHES[kind] = rest
        elif _WATCHES.pop(kind, None) is not None:
            for owner, name in [key for key in _THEIRS if key[0] is kind]:
                theirs = _THEIRS.pop((owner, name))
                if theirs is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, theirs)


_WATCHES: dict[type, list[ModelCalls]] = {}  # by the class of the module
_THEIRS: dict[tuple[type, str], Any] = {}  # what a class had of its own, by method


def _methods(model: Any) -> tuple[str, ...]:
    whole = getattr(model, "automatic_optimization", None) is True and hasattr(
        type(model), "training_step"
    )
    return ("__call__", "training_step") if whole else ("__call__",)


def _around(kind: Any, name: str) -> Callable[..., Any]:
    @wraps(getattr(kind, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        theirs = _THEIRS.get((kind, name))
        call = getattr(super(kind, self), name) if theirs is None else theirs.__get__(self)
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
