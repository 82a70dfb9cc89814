"""Watch backward passes: `Tensor.backward`, `autograd.backward` and `autograd.grad`.

All three call the private `torch.autograd.graph._engine_run_backward`, to which `torch.autograd`
has a reference as well (2.13). Both are replaced while a watch is open. If other code replaces them
after us, its replacement is kept; ours then forwards every call. Not seen: backward passes started
from C++, and those with which a pipeline infers shapes on uninitialized memory.
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
    """A backward pass that is about to start."""

    outputs: Any
    given: Any  # gradients of the outputs
    inputs: Any  # tensors to differentiate with respect to
    retains: bool  # retain_graph
    creates: bool  # create_graph
    accumulates: bool  # True if gradients are accumulated into `.grad`, False for autograd.grad
    frame: FrameType  # the frame that calls the engine


class EngineReturned(NamedTuple):
    """A backward pass that has ended or raised."""

    run: Any  # the value that the watch's `began` returned
    gradients: tuple[torch.Tensor | None, ...]  # the result of `autograd.grad`
    error: BaseException | None


# the original of each of our replacements
_theirs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_here = threading.local()  # .outputs: argument of the backward last reported in this thread
running_node: Callable[[], Any] = torch._C._current_autograd_node  # private (2.13)
# Calls a function at the end of the backward, if called inside a node. Private (2.13).
queue_callback: Any = torch.autograd.Variable._execution_engine.queue_callback
_PLACES: tuple[Any, ...] = (torch.autograd.graph, torch.autograd)


class EngineWatch(Watch):
    """A watch on the backward passes of the thread that opens it.

    Args:
        began: called with the event; its result is passed on as `EngineReturned.run`.
        ended: called with the event.
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
            # an outer replacement of ours has already reported this run
            return theirs(outputs, *args, **kwargs)
        if is_captured() or runs_ahead(sys._getframe(1)):
            return theirs(outputs, *args, **kwargs)
        enabled, collects = torch.is_grad_enabled(), gc.isenabled()
        try:
            return _run(theirs, outputs, args, kwargs, sys._getframe(1))
        except BaseException as error:
            # An interrupt may have occurred while we had disabled one of the two.
            torch._C._set_grad_enabled(enabled)
            if collects:
                gc.enable()
            hide(error)
            hide(error)  # removes the frame of `_run` as well
            raise

    return watched


def _run(theirs: Callable[..., Any], outputs: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
    """Run backward, and notify this thread's watches before and after it."""
    thread = threading.get_ident()
    given, keeps, creates, inputs = args[:4]
    accumulates = kwargs.get("accumulate_grad", True)
    began = EngineCalled(outputs, given, inputs, bool(keeps), bool(creates), accumulates, frame)
    outer = getattr(_here, "outputs", None)
    # with the result of each `began`
    told: list[tuple[Callable[[EngineReturned], object], Any]] = []
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
            del failure  # the error refers to this frame (a cycle)


def _end(
    told: list[tuple[Callable[[EngineReturned], object], Any]], gradients: Any, error: Any
) -> None:
    """Notify all watches of the end, last first, even if one of them raises."""
    while told:
        ended, run = told.pop()
        try:
            ended(EngineReturned(run, gradients, error))
        except BaseException:
            _end(told, gradients, error)
            raise
