"""Watch backward passes: `Tensor.backward`, `autograd.backward` and `autograd.grad`.

All three call the private `torch.autograd.graph._engine_run_backward`, to which `torch.autograd`
has a reference as well (2.13). Both are replaced while a watch is open. Not seen: backward passes
started from C++, and those with which a pipeline infers shapes on uninitialized memory.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from ...graph.immutable import NamedTuple
from ..frames import hide_frame, is_shape_inference
from .captures import is_captured
from .watch import Replacement, Row, Watch


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

    run: Any  # the value that the watch's `on_begin` returned
    gradients: tuple[torch.Tensor | None, ...]  # the result of `autograd.grad`
    error: BaseException | None


_thread_state = threading.local()  # .outputs: outputs of the innermost reported backward
running_node: Callable[[], Any] = torch._C._current_autograd_node  # private (2.13)
# Calls a function at the end of the backward, if called inside a node. Private (2.13).
queue_callback: Any = torch.autograd.Variable._execution_engine.queue_callback
_OWNERS: tuple[Any, ...] = (torch.autograd.graph, torch.autograd)


class EngineWatch(Watch):
    """A watch on the backward passes of the thread that opens it.

    Args:
        on_begin: called with the event; its result is passed on as `EngineReturned.run`.
        on_end: called with the event.
        on_other: called for each backward of another thread, in that thread.
    """

    def __init__(
        self,
        on_begin: Callable[[EngineCalled], Any],
        on_end: Callable[[EngineReturned], object],
        on_other: Callable[[], object] | None = None,
    ) -> None:
        self.on_begin, self.on_end, self.on_other = on_begin, on_end, on_other


def _rows() -> list[Row]:
    return [(owner, "_engine_run_backward", _wrap) for owner in _OWNERS]


_INSTALLATION = Replacement[EngineWatch](_rows)
EngineWatch.installation = _INSTALLATION


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_watched(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not _INSTALLATION.watchers or getattr(_thread_state, "outputs", None) is outputs:
            # An outer call of this function has already reported this backward.
            return original(outputs, *args, **kwargs)
        if is_captured() or is_shape_inference(sys._getframe(1)):
            return original(outputs, *args, **kwargs)
        enabled, collects = torch.is_grad_enabled(), gc.isenabled()
        try:
            return _run(original, outputs, args, kwargs, sys._getframe(1))
        except BaseException as error:
            # An interrupt may have occurred while a watch had disabled gradients or the collector.
            torch._C._set_grad_enabled(enabled)
            if collects:
                gc.enable()
            hide_frame(error)
            hide_frame(error)  # removes the frame of `_run` as well
            raise

    return run_watched


def _run(
    original: Callable[..., Any], outputs: Any, args: Any, kwargs: Any, frame: FrameType
) -> Any:
    """Run a backward, and notify this thread's `EngineWatch`es before and after it.

    Args:
        original: PyTorch's function that runs the backward.
        outputs: roots of the backward.
        args: the other positional arguments of `original`.
        kwargs: the keyword arguments of `original`.
        frame: the frame that called backward.
    """
    thread = threading.get_ident()
    given, keeps, creates, inputs = args[:4]
    accumulates = kwargs.get("accumulate_grad", True)
    began = EngineCalled(outputs, given, inputs, bool(keeps), bool(creates), accumulates, frame)
    outer = getattr(_thread_state, "outputs", None)
    # (`on_end` of a watch, result of its `on_begin`)
    pending: list[tuple[Callable[[EngineReturned], object], Any]] = []
    result, failure = None, None
    try:
        for watch in _INSTALLATION.watchers:
            if watch.thread == thread:
                pending.append((watch.on_end, watch.on_begin(began)))
            elif watch.on_other is not None:
                watch.on_other()
        _thread_state.outputs = outputs
        result = original(outputs, *args, **kwargs)
        return result
    except BaseException as error:
        failure = error
        raise
    finally:
        _thread_state.outputs = outer
        try:
            _notify_end(pending, result or (), failure)  # `backward` returns None
        finally:
            del failure  # avoids a reference cycle: the traceback refers to this frame


def _notify_end(
    pending: list[tuple[Callable[[EngineReturned], object], Any]], gradients: Any, error: Any
) -> None:
    """Notify all `EngineWatch`es of the end of a backward, even if one of them raises.

    The watch that was notified of the start last comes first.

    Args:
        pending: (`on_end` of a watch, result of its `on_begin`).
        gradients: the result of `autograd.grad`; () for `backward`.
        error: the exception that the backward raised, if any.
    """
    while pending:
        on_end, run = pending.pop()
        try:
            on_end(EngineReturned(run, gradients, error))
        except BaseException:
            _notify_end(pending, gradients, error)
            raise
