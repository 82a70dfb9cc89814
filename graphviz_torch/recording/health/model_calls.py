"""The seam of one module's calls: its class calls it by way of us while anybody watches.

A hook on the module would be copied and saved with it, and hooks on all modules cost each call of
each. A class is neither copied nor saved. A call that is traced or compiled passes as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.compiler import is_compiling

from ...internals.frames import hide

Began = Callable[[tuple[Any, ...], dict[str, Any]], object]  # arguments; gives what `ended` takes
Ended = Callable[[Any, Any], None]  # what `began` gave, the result


class ModelCalls:
    """Tells of the calls of a module, in the thread that opens it, until `close()`.

    Args:
        model: whose calls.
        began, ended: take them.
    """

    def __init__(self, model: torch.nn.Module, began: Began, ended: Ended) -> None:
        self.model, self.began, self.ended = model, began, ended
        self.thread = 0

    def open(self) -> None:
        """Watch from now on, in this thread."""
        kind = type(self.model)
        self.thread = get_ident()
        if isinstance(self.model, torch.jit.ScriptModule):
            return
        if kind not in _WATCHES:
            _WATCHES[kind] = []
            _THEIRS[kind] = vars(kind).get("__call__")
            kind.__call__ = _around(kind)  # type: ignore[method-assign]
        if self not in _WATCHES[kind]:
            _WATCHES[kind] = [*_WATCHES[kind], self]

    def close(self) -> None:
        """Watch no more, if it does."""
        kind = type(self.model)
        rest = [watch for watch in _WATCHES.get(kind, ()) if watch is not self]
        if rest:
            _WATCHES[kind] = rest
        elif _WATCHES.pop(kind, None) is not None:
            theirs = _THEIRS.pop(kind)
            if theirs is None:
                del kind.__call__
            else:
                kind.__call__ = theirs  # type: ignore[method-assign]


_WATCHES: dict[type, list[ModelCalls]] = {}  # by the class of the module
_THEIRS: dict[type, Any] = {}  # what a class had of its own


def _around(kind: Any) -> Callable[..., Any]:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        theirs = _THEIRS.get(kind)
        call = super(kind, self).__call__ if theirs is None else theirs.__get__(self)
        if is_compiling():
            return call(*args, **kwargs)
        watches = [w for w in _WATCHES.get(kind, ()) if w.model is self]
        if not watches or watches[0].thread != get_ident():
            return call(*args, **kwargs)
        given = watches[0].began(args, kwargs)
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            hide(error)
            raise
        watches[0].ended(given, result)
        return result

    return __call__
