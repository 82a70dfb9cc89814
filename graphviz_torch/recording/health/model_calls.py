"""Observe the calls of one module, by replacing `__call__` of the module's class.

A hook on the module itself would be copied and saved together with the module, and global module
hooks would slow down the calls of all modules. A class is neither copied nor saved. Traced and
compiled calls are not observed. In a Lightning module, `training_step` is observed as well, because
it contains forward and loss. It is not observed with manual optimization, because such a step
cannot be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from threading import get_ident
from typing import Any

import torch
from torch.compiler import is_compiling

from ...internals.frames import hide_frame
from ...internals.hooks.watch import Replacement, Row, Watch
from ...internals.recursion import RaisedRecursionLimit

# Callback before a call. It takes the method's name, args and kwargs, and returns any value.
Began = Callable[[str, tuple[Any, ...], dict[str, Any]], object]
# Callback after a call. It takes the value that `Began` returned, and the result of the call.
Ended = Callable[[Any, Any], None]


class ModelCalls(Watch):
    """An observer of one module's calls in the thread that calls `open`, until `close()`.

    Args:
        model: the module.
        began: called before each call.
        ended: called after each call that returned.
    """

    def __init__(self, model: torch.nn.Module, began: Began, ended: Ended) -> None:
        self.model, self.began, self.ended = model, began, ended

    def open(self) -> None:
        """Replace methods of the module's class, to observe calls from this thread."""
        if isinstance(self.model, torch.jit.ScriptModule):
            return
        kind = type(self.model)
        _RECURSION_LIMIT.open()
        self.installation = _CLASSES.setdefault(kind, Replacement(lambda: _rows(kind)))
        super().open()

    def close(self) -> None:
        """Stop observing. The class is restored if no other module of the class is observed."""
        kind = type(self.model)
        if kind in _CLASSES:
            _CLASSES[kind].discard(self)
            if not _CLASSES[kind].watchers:
                del _CLASSES[kind]
        if not _CLASSES:
            _RECURSION_LIMIT.close()


_CLASSES: dict[type, Replacement[ModelCalls]] = {}  # by class of the observed modules
# Observed calls need one more frame.
_RECURSION_LIMIT = RaisedRecursionLimit()


def _methods(model: Any) -> tuple[str, ...]:
    whole = getattr(model, "automatic_optimization", None) is True and hasattr(
        type(model), "training_step"
    )
    return ("__call__", "training_step") if whole else ("__call__",)


def _rows(kind: Any) -> Iterator[Row]:
    for name in {name for watch in _CLASSES[kind].watchers for name in _methods(watch.model)}:
        yield kind, name, partial(_wrap, kind, name, name not in vars(kind))


def _wrap(
    kind: Any, name: str, inherited: bool, original: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = getattr(super(kind, self), name) if inherited else partial(original, self)
        if is_compiling():
            return call(*args, **kwargs)
        for watch in _CLASSES[kind].watchers if kind in _CLASSES else ():
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
