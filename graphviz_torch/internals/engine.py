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


class Called(NamedTuple):
    """What the engine is called with."""

    outputs: Any
    inputs: Any  # that were asked for
    keeps: bool  # is the graph retained
    accumulates: bool  # into `.grad`; else it is autograd.grad


Begin = Callable[[Called], Any]  # called before a run
# Called after it with what `Begin` returned, the gradients, and what it raised: one of the two.
End = Callable[[Any, "tuple[torch.Tensor | None, ...] | None", BaseException | None], None]

_lock = threading.RLock()  # the collector may leave a forgotten watch while this thread holds it
_watchers: list[tuple[int, Begin, End]] = []
_theirs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # what each of our functions replaced
_here = threading.local()  # .outputs: of the run that this thread was last told of


class EngineWatch:
    """A context in which `begin` and `end` are called around each backward of its thread."""

    def __init__(self, begin: Begin, end: End) -> None:
        self._calls = begin, end

    def __enter__(self) -> EngineWatch:
        self._entry = (threading.get_ident(), *self._calls)
        with _lock:
            if not _watchers:
                _replace()
            _watchers.append(self._entry)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _watchers.remove(self._entry)
            current = torch.autograd.graph._engine_run_backward
            if not _watchers and current in _theirs:
                _set(_theirs[current])


def _replace() -> None:
    current = torch.autograd.graph._engine_run_backward
    if current not in _theirs:
        ours = _around(current)
        _theirs[ours] = current
        _set(ours)


def _set(function: Callable[..., Any]) -> None:
    torch.autograd.graph._engine_run_backward = function
    torch.autograd._engine_run_backward = function  # type: ignore[attr-defined]


def _around(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def watched(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not _watchers or getattr(_here, "outputs", None) is outputs:
            return theirs(outputs, *args, **kwargs)  # ours that is above theirs has told of it
        enabled, collects = torch.is_grad_enabled(), gc.isenabled()
        try:
            return _told(theirs, outputs, args, kwargs)
        except BaseException:
            # An interrupt may have come just where we had switched one of these off.
            torch._C._set_grad_enabled(enabled)
            if collects:
                gc.enable()
            raise

    return watched


def _told(theirs: Callable[..., Any], outputs: Any, args: Any, kwargs: Any) -> Any:
    """Run backward, and tell this thread's watchers before and after."""
    thread = threading.get_ident()
    _, keeps, _, inputs = args[:4]
    called = Called(outputs, inputs, bool(keeps), kwargs.get("accumulate_grad", True))
    results: list[Any] = []  # none if it raises
    with ExitStack() as stack:
        for owner, begin, end in tuple(_watchers):
            if owner == thread:
                run = begin(called)
                stack.push(partial(_end, end, run, results))
        outer, _here.outputs = getattr(_here, "outputs", None), outputs
        stack.callback(setattr, _here, "outputs", outer)
        results.append(theirs(outputs, *args, **kwargs))
    return results[0]


def _end(end: End, run: Any, results: list[Any], kind: Any, error: Any, traceback: Any) -> None:
    end(run, (results[0] or ()) if results else None, error)  # `backward` returns None
