"""Watch captures and replays of CUDA graphs.

Nothing may be recorded during a capture: our own device work would become part of the graph, and
reading a value would abort the capture. From `capture_begin` to `capture_end`, all watches of the
capturing thread are therefore suspended. Graphs that `torch.compile` and `make_graphed_callables`
capture are ignored, and no watch is suspended for them.

Uses private API: `torch.cuda.graph` calls the methods of `torch.cuda.CUDAGraph` by name (2.8 to
2.13). The methods are replaced while a watch is open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from ..frames import TORCH, resume_programs, suspend_programs
from .watch import Replacement, Row, Watch

# Methods of torch.cuda.graph, which call the methods of a CUDAGraph.
_CONTEXT = ("__enter__", "__exit__")
_NO_GRAPHS: frozenset[int] = frozenset()
# The value of `_watched` when the captures began, and id() of each graph being captured.
_captured: ContextVar[tuple[object, frozenset[int]]] = ContextVar(
    "graphviz_torch_captured", default=(None, _NO_GRAPHS)
)
# Replaced when the last watch closes, which makes the ids of captures that have not ended invalid.
_watched = object()


class CaptureWatch(Watch):
    """A watch on CUDA graphs captured and replayed by the thread that opens it.

    Args:
        on_begin: called before a capture.
        on_replay: called after a replay.
    """

    def __init__(
        self,
        on_begin: Callable[[], object] = lambda: None,
        on_replay: Callable[[], object] = lambda: None,
    ) -> None:
        self.on_begin, self.on_replay = on_begin, on_replay


def is_captured() -> bool:
    """Return True while this thread captures a CUDA graph; nothing is recorded then."""
    return bool(_graphs())


def _graphs() -> frozenset[int]:
    watched, graphs = _captured.get()
    return graphs if watched is _watched else _NO_GRAPHS


def _wrap_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        watches = _watches(sys._getframe(1))
        if not watches:
            return original(graph, *args, **kwargs)
        if not is_captured():
            for watch in watches:
                watch.on_begin()
            suspend_programs()
        before = _graphs()
        _captured.set((_watched, before | {id(graph)}))
        try:
            return original(graph, *args, **kwargs)
        except BaseException:
            if id(graph) not in before:
                _end_capture(graph)
            raise

    return capture_begin


def _wrap_end(original: Callable[..., Any]) -> Callable[..., Any]:
    def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(graph, *args, **kwargs)
        finally:
            _end_capture(graph)

    return capture_end


def _wrap_replay(original: Callable[..., Any]) -> Callable[..., Any]:
    def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(graph, *args, **kwargs)
        for watch in _watches(sys._getframe(1)):
            watch.on_replay()
        return result

    return replay


def _watches(frame: FrameType | None) -> list[CaptureWatch]:
    """Return the `CaptureWatch`es to notify of a call in `frame`; [] if PyTorch makes the call."""
    if frame is not None and frame.f_code.co_name in _CONTEXT:
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(TORCH):
        return []
    return [watch for watch in _INSTALLATION.watchers if watch.thread == get_ident()]


def _end_capture(graph: Any) -> None:
    """Mark the capture of a CUDA graph as ended; after the last one, resume the recordings."""
    before = _graphs()
    left = before - {id(graph)}
    if before and not left:
        resume_programs()
    _captured.set((_watched, left))


_WRAPPERS = {"capture_begin": _wrap_begin, "capture_end": _wrap_end, "replay": _wrap_replay}


def _rows() -> list[Row]:
    return [(torch.cuda.CUDAGraph, name, wrap) for name, wrap in _WRAPPERS.items()]


def _forget_captures() -> None:
    global _watched
    _watched = object()


_INSTALLATION = Replacement[CaptureWatch](_rows, remove=_forget_captures)
CaptureWatch.installation = _INSTALLATION
