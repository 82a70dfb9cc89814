"""The seam of CUDA graphs: one is about to be captured, and one is replayed.

What is captured is not watched: whatever we did on the device would become a part of the graph, and
to read a value there ends the capture. So from `capture_begin` to `capture_end` no program is
watched in this thread, and no backward and no optimizer's step of it is told. Not looked at are the
captures and replays of PyTorch's own, of `torch.compile` and `make_graphed_callables`: they are
parts of a forward or a backward that is told.

Private: `torch.cuda.graph` calls methods of `torch.cuda.CUDAGraph` (2.8 to 2.13), which are
replaced while anybody watches. Whoever replaces them in turn keeps theirs: what we put there then
passes every call until they take it out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..frames import TORCH, leave_programs, programs, return_to_programs
from .watch import Installation, Watch

_CONTEXT = ("__enter__", "__exit__")  # of torch.cuda.graph, which call the methods of a graph
_left: dict[int, frozenset[object]] = {}  # by thread that captures: the programs watched before
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
    """Does what this thread does become a CUDA graph, of which nothing is told?"""
    return bool(_left) and get_ident() in _left


def _around_begin(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        watches = _watches(sys._getframe(1))
        for watch in watches:
            watch.begins()
        try:
            if watches:
                _left[get_ident()] = programs()
                leave_programs()
            return theirs(graph, *args, **kwargs)
        except BaseException:
            _come_back()
            raise

    return capture_begin


def _around_end(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(graph, *args, **kwargs)
        finally:
            _come_back()

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


def _come_back() -> None:
    """The capture of this thread is over, if there was one: its programs are watched again."""
    left = _left.pop(get_ident(), None)
    if left is not None:
        return_to_programs(left)


_AROUND = {"capture_begin": _around_begin, "capture_end": _around_end, "replay": _around_replay}


def _replace() -> None:
    for name, around in _AROUND.items():
        current = getattr(torch.cuda.CUDAGraph, name)
        if current not in _theirs:
            ours = around(current)
            _theirs[ours] = current
            setattr(torch.cuda.CUDAGraph, name, ours)


def _restore() -> None:
    _left.clear()  # whoever was watched before is not any more
    for name in _AROUND:
        current = getattr(torch.cuda.CUDAGraph, name)
        if current in _theirs:
            setattr(torch.cuda.CUDAGraph, name, _theirs[current])


_INSTALLATION: Installation[CaptureWatch] = Installation(_replace, _restore)
CaptureWatch.installation = _INSTALLATION
