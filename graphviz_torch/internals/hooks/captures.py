"""The seam of CUDA graphs: one is about to be captured, and one was replayed.

What is captured is not watched: whatever we did on the device would become a part of the graph, and
to read a value there ends the capture. So from `capture_begin` to `capture_end` nothing is told of
what the thread does. PyTorch captures and replays graphs of its own, for `torch.compile` and
`make_graphed_callables`: nothing is told of these, and what goes on around them is.

Private: that `torch.cuda.graph` calls the methods of `torch.cuda.CUDAGraph` by name (2.8 to 2.13).
They are replaced while anybody watches. Whoever replaces them in turn keeps theirs: what we put
there then passes every call until they take it out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from threading import get_ident
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..frames import TORCH, bring_programs_back, set_programs_aside
from .watch import Installation, Watch

_CONTEXT = ("__enter__", "__exit__")  # of torch.cuda.graph, which call the methods of a graph
_NONE: frozenset[int] = frozenset()
# id() of the graphs that are captured here, for a thread has its own; and what `_watched` was then.
_captured: ContextVar[tuple[object, frozenset[int]]] = ContextVar(
    "graphviz_torch_captured", default=(None, _NONE)
)
_watched = object()  # another one after the last watch has gone, which may be amid a capture
_theirs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # what each of our functions replaced


class CaptureWatch(Watch):
    """Tells of the CUDA graphs of the thread that opens it, until `close()`.

    Args:
        begins: is called before one is captured.
        replayed: is called after one was replayed.
    """

    def __init__(
        self,
        begins: Callable[[], object] = lambda: None,
        replayed: Callable[[], object] = lambda: None,
    ) -> None:
        self.begins, self.replayed = begins, replayed


def is_captured() -> bool:
    """Is a CUDA graph captured in this thread? Then nothing is told of it."""
    return bool(_graphs())


def _graphs() -> frozenset[int]:
    watched, graphs = _captured.get()
    return graphs if watched is _watched else _NONE


def _around_begin(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        watches = _watches(sys._getframe(1))
        if not watches:
            return theirs(graph, *args, **kwargs)
        if not is_captured():
            for watch in watches:
                watch.begins()
            set_programs_aside()
        before = _graphs()
        _captured.set((_watched, before | {id(graph)}))
        try:
            return theirs(graph, *args, **kwargs)
        except BaseException:
            if id(graph) not in before:
                _end(graph)
            raise

    return capture_begin


def _around_end(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(graph, *args, **kwargs)
        finally:
            _end(graph)

    return capture_end


def _around_replay(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
        result = theirs(graph, *args, **kwargs)
        for watch in _watches(sys._getframe(1)):
            watch.replayed()
        return result

    return replay


def _watches(frame: FrameType | None) -> list[CaptureWatch]:
    """Who is told of a method of a graph that is called in this frame: nobody of PyTorch's own."""
    if frame is not None and frame.f_code.co_name in _CONTEXT:
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(TORCH):
        return []
    return [watch for watch in _INSTALLATION.watchers if watch.thread == get_ident()]


def _end(graph: Any) -> None:
    """This graph is captured no more; after the last one the programs are watched again."""
    before = _graphs()
    left = before - {id(graph)}
    if before and not left:
        bring_programs_back()
    _captured.set((_watched, left))


_AROUND = {"capture_begin": _around_begin, "capture_end": _around_end, "replay": _around_replay}


def _replace() -> None:
    for name, around in _AROUND.items():
        current = getattr(torch.cuda.CUDAGraph, name)
        if current not in _theirs:
            ours = around(current)
            _theirs[ours] = current
            setattr(torch.cuda.CUDAGraph, name, ours)


def _restore() -> None:
    global _watched
    _watched = object()
    for name in _AROUND:
        current = getattr(torch.cuda.CUDAGraph, name)
        if current in _theirs:
            setattr(torch.cuda.CUDAGraph, name, _theirs[current])


_INSTALLATION: Installation[CaptureWatch] = Installation(_replace, _restore)
CaptureWatch.installation = _INSTALLATION
