"""Noticing that backward runs: `Tensor.backward`, `autograd.backward` and `autograd.grad`.

Private: all three go through `torch.autograd.graph._engine_run_backward`, which `torch.autograd`
holds by name too (2.13); it is replaced while anybody watches. Not noticed: a run started from C++.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Run(Protocol):
    """One run of backward that is watched."""

    def finish(self, gradients: tuple[torch.Tensor | None, ...] | None) -> None:
        """It ended; with the gradients that it returned, None if it raised."""


# Called before a run with its outputs, their gradients, and the inputs that were asked for.
Begin = Callable[[Any, Any, Any], "Run | None"]

_lock = threading.Lock()
_watchers: list[tuple[int, Begin]] = []
_run_backward: Callable[..., Any] = torch.autograd.graph._engine_run_backward


class EngineWatch:
    """A context in which `begin` is called before each backward that its thread starts."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin

    def __enter__(self) -> EngineWatch:
        self._entry = (threading.get_ident(), self._begin)
        with _lock:
            if not _watchers:
                _replace()
            _watchers.append(self._entry)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _watchers.remove(self._entry)
            if not _watchers:
                _set(_run_backward)


def _replace() -> None:
    global _run_backward
    _run_backward = torch.autograd.graph._engine_run_backward
    _set(_watched)


def _set(function: Callable[..., Any]) -> None:
    torch.autograd.graph._engine_run_backward = function
    torch.autograd._engine_run_backward = function  # type: ignore[attr-defined]


def _watched(outputs: Any, *args: Any, **kwargs: Any) -> Any:
    thread = threading.get_ident()
    gradients, _, _, inputs = args[:4]
    runs = [begin(outputs, gradients, inputs) for owner, begin in _watchers if owner == thread]
    result = None
    try:
        result = _run_backward(outputs, *args, **kwargs)
    finally:
        for run in reversed(runs):
            if run is not None:
                run.finish(result)
    return result
