"""Watch the calls of custom autograd Functions: `Function.apply`.

`Function.apply` finds the C++ function that runs `forward` by `super()`. While a watch is open, the
private class `_SingleLevelFunction` between them has an `apply`, so that references to `apply` that
the program made before are watched, too (2.13). Not seen: a Function inside `torch.func`
transforms, and PyTorch from 2.14 on, where `Function.apply` is written in C++.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.autograd.function import Function, _SingleLevelFunction

from ...graph.immutable import NamedTuple
from ..dynamo import not_compiled_itself
from ..frames import hide_frame
from .modes import FUNCTIONS, enter_below, leave
from .watch import Replacement, Watch


class FunctionCalled(NamedTuple):
    """A custom Function whose forward is about to run."""

    function: type[Function]
    args: tuple[Any, ...]
    modes: list[Any]  # function modes that a listener adds; they are entered around the forward
    ended: list[Callable[[Any], object]]  # callbacks that a listener adds; they get the result


class FunctionWatch(Watch):
    """A watch on the custom Functions that the thread which opens it applies.

    Args:
        on_call: called before the forward.
    """

    def __init__(self, on_call: Callable[[FunctionCalled], object]) -> None:
        self.on_call = on_call


def _apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
    run = super(_SingleLevelFunction, kind).apply
    watches = [w for w in _INSTALLATION.watchers if w.thread == threading.get_ident()]
    if not watches or not issubclass(kind, Function) or torch.compiler.is_compiling():
        return run(*args, **kwargs)
    event = FunctionCalled(kind, args, [], [])
    for watch in watches:
        watch.on_call(event)
    try:
        with ExitStack() as stack:
            for mode in event.modes:
                stack.callback(leave, mode, FUNCTIONS)
                enter_below(mode, FUNCTIONS)
            result = run(*args, **kwargs)
    except BaseException as error:
        hide_frame(error)
        raise
    for handle in event.ended:
        handle(result)
    return result


_INSTALLATION = Replacement[FunctionWatch](
    lambda: [
        (_SingleLevelFunction, "apply", lambda original: classmethod(not_compiled_itself(_apply)))
    ]
)
FunctionWatch.installation = _INSTALLATION
