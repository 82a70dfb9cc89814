"""The seam of checkpoints: what `torch.utils.checkpoint` knows of a part that it runs again.

Autograd saves a `_Holder` there in place of each tensor. The `_CheckpointFrame` of the part has
what its forward was given; all holders keep it alive, but none tells whose it is.

Private: a frame's `saved_args`, `weak_holders` and `recomp_counter`, two variables of its function,
and where a policy keeps results (2.13); an older frame's `input_saver` (2.11) is the result of a
node that saves the tensors among the arguments, and has the others in a function of its own. The
other kind of checkpoint, `use_reentrant=True`, is a node of the graph and needs no seam.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from .dispatch import sequence_number
from .watch import Installation, Watch

Frame = Any  # a `_CheckpointFrame`
_FRAME: Any = checkpoint._CheckpointFrame
_theirs: Any = _FRAME.__init__
_Saved: Any = torch._C._autograd.SavedTensor


class CheckpointWatch(Watch):
    """Knows the checkpointed parts that its thread begins, until `close()`, and holds none."""

    def __init__(self) -> None:
        # Each with the sequence number of the first node in it, the outer before the inner.
        self._frames: WeakKeyDictionary[Frame, int] = WeakKeyDictionary()

    def began(self, frame: Frame) -> None:
        """A part begins, in any thread."""
        if threading.get_ident() == self.thread:
            self._frames[frame] = sequence_number()

    def frames(self) -> list[tuple[Frame, int]]:
        """Those that are alive, the inner before the outer."""
        return [*self._frames.items()][::-1]


def is_holder(data: Any) -> bool:
    """Does this stand for a tensor that is made again."""
    return type(data) is checkpoint._Holder


def holders_of(frame: Frame) -> list[Any]:
    """What stands for the tensors of a part, in the order of its forward; None for dead ones."""
    return [reference() for reference in frame.weak_holders]


def contents_of(frame: Frame) -> list[Any]:
    """What a part keeps to run again; a holder stands for what the part around it makes again."""
    older = getattr(frame, "input_saver", None)
    if older is None:
        given, others = frame.saved_args, _variable(frame.recompute_fn, "kwargs")
    else:
        node = older.grad_fn
        given = node._raw_saved_tensors[1:]  # after one of its own
        others = _variable(node.get_args, "args")
    values = [each.data if isinstance(each, _Saved) else each for each in given]
    return [*values, others, cache_of(frame)]


def cache_of(frame: Frame) -> list[Any] | None:
    """The results that a policy keeps (`create_selective_checkpoint_contexts`); None without."""
    context = _variable(frame.recompute_fn, "recompute_context")
    storage = getattr(context, "storage", None)
    return None if storage is None else [getattr(e, "val", None) for e in tree_leaves(storage)]


def _variable(function: Any, name: str) -> Any:
    """What a function has from around it; None where it has none of this name."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return cells[name].cell_contents if name in cells else None


def _init(self: Frame, *args: Any, **kwargs: Any) -> None:
    _theirs(self, *args, **kwargs)
    for watch in CheckpointWatch.installation.watchers:
        watch.began(self)


def _install() -> None:
    if _FRAME.__init__ is _theirs:
        _FRAME.__init__ = _init


def _remove() -> None:
    if _FRAME.__init__ is _init:
        _FRAME.__init__ = _theirs


CheckpointWatch.installation = Installation(_install, _remove)
