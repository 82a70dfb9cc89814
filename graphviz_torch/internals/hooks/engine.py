"""The seam of backwards: `Tensor.backward`, `autograd.backward` and `autograd.grad`.

Private: all three go through `torch.autograd.graph._engine_run_backward`, which `torch.autograd`
holds by name too (2.13); it is replaced while anybody watches. Whoever replaces it in turn keeps
theirs: what we put there then passes every run until they take it out. Not noticed: a run started
from C++, and one by which a pipeline learns shapes, on memory that nobody has set.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from ..frames import hide, runs_ahead
from .captures import is_captured
from .watch import Installation, Watch


class EngineCalled(NamedTuple):
    """The engine is about to run a backward."""

    outputs: Any
    given: Any  # their gradients
    inputs: Any  # that were asked for
    retains: bool  # is the graph retained
    creates: bool  # is a graph of the gradients made
    accumulates: bool  # into `.grad`; else it is autograd.grad
    frame: FrameType  # that calls the engine


class EngineReturned(NamedTuple):
    """The engine has run it, or raised."""

    run: Any  # what was returned when it began
    gradients: tuple[torch.Tensor | None, ...]  # of `autograd.grad`
    error: BaseException | None


_theirs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # what each of our functions replaced
_here = threading.local()  # .outputs: of the run that this thread was last told of
running_node: Callable[[], Any] = torch._C._current_autograd_node  # private (2.13)
# Called in a node, it has a function called when the run is over. Private (2.13).
queue_callback: Any = torch.autograd.Variable._execution_engine.queue_callback
_PLACES: tuple[Any, ...] = (torch.autograd.graph, torch.autograd)


class EngineWatch(Watch):
    """Tells of each backward of the thread that opens it, until `close()`.

    Args:
        began: takes the event; what it returns stands in the event of the end.
        ended: takes the event.
    """

    def __init__(
        self, began: Callable[[EngineCalled], Any], ended: Callable[[EngineReturned], object]
    ) -> None:
        self.began, self.ended = began, ended


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
EngineWatch.installation = _INSTALLATION


def _around(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def watched(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not _INSTALLATION.watchers or getattr(_here, "outputs", None) is outputs:
            return theirs(outputs, *args, **kwargs)  # ours that is above theirs has told of it
        if is_captured() or runs_ahead(sys._getframe(1)):
            return theirs(outputs, *args, **kwargs)
        enabled, collects = torch.is_grad_enabled(), gc.isenabled()
        try:
            return _run(theirs, outputs, args, kwargs, sys._getframe(1))
        except BaseException as error:
            # An interrupt may have come just where we had switched one of these off.
            torch._C._set_grad_enabled(enabled)
            if collects:
                gc.enable()
            hide(error)
            hide(error)  # of the function below
            raise

    return watched


def _run(theirs: Callable[..., Any], outputs: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
    """Run backward, and tell this thread's watchers before and after."""
    thread = threading.get_ident()
    given, keeps, creates, inputs = args[:4]
    accumulates = kwargs.get("accumulate_grad", True)
    began = EngineCalled(outputs, given, inputs, bool(keeps), bool(creates), accumulates, frame)
    outer = getattr(_here, "outputs", None)
    told: list[tuple[Callable[[EngineReturned], object], Any]] = []  # each with what it returned
    result, failure = None, None
    try:
        for watch in _INSTALLATION.watchers:
            if watch.thread == thread:
                told.append((watch.ended, watch.began(began)))
        _here.outputs = outputs
        result = theirs(outputs, *args, **kwargs)
        return result
    except BaseException as error:
        failure = error
        raise
    finally:
        _here.outputs = outer
        try:
            _end(told, result or (), failure)  # `backward` returns None
        finally:
            del failure  # which holds this frame


def _end(
    told: list[tuple[Callable[[EngineReturned], object], Any]], gradients: Any, error: Any
) -> None:
    """Tell all, the last first, though one raises."""
    while told:
        ended, run = told.pop()
        try:
            ended(EngineReturned(run, gradients, error))
        except BaseException:
            _end(told, gradients, error)
            raise
