"""Find the segments of `torch.utils.checkpoint`, and the tensors that each segment keeps.

In a checkpointed segment, autograd saves a `_Holder` instead of each tensor. The segment's
`_CheckpointFrame` refers to the arguments of its forward. Each holder keeps the frame alive, but
does not show to which frame it belongs.

Uses private API of 2.13: attributes of a `_CheckpointFrame` (`saved_args`, `weak_holders`,
`recomp_counter`, `recompute_fn`), variables of the functions that recompute a segment, and the
storage of a selective-checkpoint policy. In 2.11, a `_CheckpointFrame` has `input_saver` instead of
`saved_args`. It is the output of a node that saves the tensors among the arguments, and whose
`get_args` refers to the other arguments. With `use_reentrant=True` the segment is a node of the
graph, and needs no watch.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from ..frames import CodePosition, user_frame
from .dispatch import sequence_number
from .watch import Replacement, Watch

Frame = Any  # a `_CheckpointFrame`
_FRAME: Any = checkpoint._CheckpointFrame
_FILE = checkpoint.__file__
_FIRST_FORWARD = checkpoint.CheckpointFunction.forward.__code__
_SECOND_FORWARD = checkpoint.CheckpointFunction.backward.__code__
_Saved: Any = torch._C._autograd.SavedTensor


class CheckpointWatch(Watch):
    """A watch that lists the checkpointed segments of its thread, by weak references."""

    def __init__(self) -> None:
        # Segment -> sequence number of its first node; outer segments come before inner ones.
        self._frames: WeakKeyDictionary[Frame, int] = WeakKeyDictionary()

    def add_segment(self, frame: Frame) -> None:
        """Add a checkpointed segment whose forward begins, unless another thread runs it.

        Args:
            frame: PyTorch's `_CheckpointFrame` of the segment.
        """
        if threading.get_ident() == self.thread:
            self._frames[frame] = sequence_number()

    def frames(self) -> list[tuple[Frame, int]]:
        """Return (segment, sequence number of its first node) for live segments, inner first."""
        return [*self._frames.items()][::-1]


_POSITIONS: WeakKeyDictionary[Frame, CodePosition] = WeakKeyDictionary()


def calling_position(frame: Frame) -> CodePosition | None:
    """Return the position of the user's call of `checkpoint`; None for an unwatched segment."""
    return _POSITIONS.get(frame)


def redrawing_segment(frame: FrameType | None) -> Frame | None:
    """Return the checkpointed segment that is recomputed with other random numbers, or None.

    This happens with `preserve_rng_state=False`.

    Args:
        frame: the frame of a call inside the recomputation.
    """
    preserves = True
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _FILE and code.co_name == "recompute_fn":
            preserves = bool(frame.f_locals.get("preserve_rng_state", True))
        elif code.co_filename == _FILE and code.co_name == "unpack_hook":
            return None if preserves else frame.f_locals.get("frame")
        frame = frame.f_back
    return None


def reentrant_segment(frame: FrameType | None) -> tuple[Any, FrameType | None] | None:
    """Return the innermost segment with `use_reentrant=True` around a frame; None outside of one.

    Args:
        frame: the frame of a call.

    Returns:
        The node of the segment, and the frame that runs the segment's first forward; None instead
        of the frame if backward runs the segment again.
    """
    while frame is not None:
        if frame.f_code is _FIRST_FORWARD:
            return frame.f_locals["ctx"], frame
        if frame.f_code is _SECOND_FORWARD:
            return frame.f_locals["ctx"], None
        frame = frame.f_back
    return None


def is_holder(data: Any) -> bool:
    """Return True if `data` is the placeholder of a tensor that will be recomputed."""
    return type(data) is checkpoint._Holder


def holders_of(frame: Frame) -> list[Any]:
    """Return the placeholders of a segment's saved tensors, in order; None for a freed one."""
    return [reference() for reference in frame.weak_holders]


def contents_of(frame: Frame) -> list[Any]:
    """Return all values that a checkpointed segment keeps for its recomputation.

    A placeholder among them represents a tensor that an outer segment recomputes.
    """
    older = getattr(frame, "input_saver", None)
    if older is None:
        given, others = frame.saved_args, _variable(frame.recompute_fn, "kwargs")
    else:
        node = older.grad_fn
        given = node._raw_saved_tensors[1:]  # the first saved tensor is not an argument
        others = _variable(node.get_args, "args")
    values = [each.data if isinstance(each, _Saved) else each for each in given]
    return [*values, others, cache_of(frame)]


def cache_of(frame: Frame) -> list[Any] | None:
    """Return the results that a selective-checkpoint policy keeps; None without a policy."""
    context = _variable(frame.recompute_fn, "recompute_context")
    storage = getattr(context, "storage", None)
    return None if storage is None else [getattr(e, "val", None) for e in tree_leaves(storage)]


def _variable(function: Any, name: str) -> Any:
    """Return a variable of a function's closure, or None if it has none of this name."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return cells[name].cell_contents if name in cells else None


def _wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Frame, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        caller = user_frame(sys._getframe(1))
        if caller is not None:
            _POSITIONS[self] = caller.f_code, caller.f_lasti
        for watch in CheckpointWatch.installation.watchers:
            watch.add_segment(self)

    return __init__


CheckpointWatch.installation = Replacement(lambda: [(_FRAME, "__init__", _wrap_init)])
