"""Noticing that backward runs: `Tensor.backward`, `autograd.backward` and `autograd.grad`.

Private: all three go through `torch.autograd.graph._engine_run_backward`, which `torch.autograd`
holds by name too (2.13); it is replaced while anybody watches. Whoever replaces it in turn keeps
theirs: what we put there then passes every run until they take it out. Not noticed: a run started
from C++.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from ..frames import hide
from .installation import Installation


class EngineCall(NamedTuple):
    """What the engine is called with."""

    outputs: Any
    inputs: Any  # that were asked for
    keeps: bool  # is the graph retained
    accumulates: bool  # into `.grad`; else it is autograd.grad


Begin = Callable[[EngineCall], Any]  # called before a run
# EngineCall after it with what `Begin` returned, the gradients, and what it raised: one of the two.
End = Callable[[Any, "tuple[torch.Tensor | None, ...] | None", BaseException | None], None]

_theirs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # what each of our functions replaced
_here = threading.local()  # .outputs: of the run that this thread was last told of
running_node: Callable[[], Any] = torch._C._current_autograd_node  # private (2.13)
# EngineCall in a node: has a function called when the run is over. Private (2.13).
queue_callback: Any = torch.autograd.Variable._execution_engine.queue_callback
_PLACES: tuple[Any, ...] = (torch.autograd.graph, torch.autograd)


class EngineWatch:
    """Calls `begin` and `end` around each backward of the thread that opens it, until `close()`."""

    def __init__(self, begin: Begin, end: End) -> None:
        self.begin, self.end = begin, end
        self.thread = 0

    def open(self) -> None:
        """Watch the backwards of this thread from now on."""
        self.thread = threading.get_ident()
        _INSTALLATION.add(self)

    def close(self) -> None:
        """Watch no more, if it does."""
        _INSTALLATION.discard(self)

    def __enter__(self) -> EngineWatch:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _replace() -> None:
    current = torch.autograd.graph._engine_run_backward
    if current not in _theirs:
        ours = _around(current)
        _theirs[ours] = current
        current = ours
    _set(current)


def _restore() -> None:
    for place in _PLACES:
        current = place._engine_run_backward
        if current in _theirs:
            place._engine_run_backward = _theirs[current]


def _set(function: Callable[..., Any]) -> None:
    for place in _PLACES:
        place._engine_run_backward = function


_INSTALLATION: Installation[EngineWatch] = Installation(_replace, _restore)


def _around(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def watched(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not _INSTALLATION.watchers or getattr(_here, "outputs", None) is outputs:
            return theirs(outputs, *args, **kwargs)  # ours that is above theirs has told of it
        enabled, collects = torch.is_grad_enabled(), gc.isenabled()
        try:
            return _run(theirs, outputs, args, kwargs)
        except BaseException as error:
            # An interrupt may have come just where we had switched one of these off.
            torch._C._set_grad_enabled(enabled)
            if collects:
                gc.enable()
            hide(error)
            hide(error)  # of the function below
            raise

    return watched


def _run(theirs: Callable[..., Any], outputs: Any, args: Any, kwargs: Any) -> Any:
    """Run backward, and tell this thread's watchers before and after."""
    thread = threading.get_ident()
    _, keeps, _, inputs = args[:4]
    called = EngineCall(outputs, inputs, bool(keeps), kwargs.get("accumulate_grad", True))
    results: list[Any] = []  # none if it raises
    with ExitStack() as stack:
        for watch in _INSTALLATION.watchers:
            if watch.thread == thread:
                run = watch.begin(called)
                stack.push(partial(_end, watch.end, run, results))
        outer, _here.outputs = getattr(_here, "outputs", None), outputs
        stack.callback(setattr, _here, "outputs", outer)
        results.append(theirs(outputs, *args, **kwargs))
    return results[0]


def _end(end: End, run: Any, results: list[Any], kind: Any, error: Any, traceback: Any) -> None:
    end(run, (results[0] or ()) if results else None, error)  # `backward` returns None
