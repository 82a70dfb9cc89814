"""What was changed in place while recording, and by which line: to tell why a backward failed.

Noted is every call that changes a tensor in place as the user's code makes it: `add_`, `x[i] = 1`,
`relu(inplace=True)`, `out=`. Not what an optimizer changes: its step is known as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from .following import name_of
from .names import local_variables
from .parts import storage_id
from .places import Place, user_frame
from .uncompiled import uncompiled

_KEPT = 10_000  # changes; the oldest are forgotten


class Change(NamedTuple):
    """A call that changed a tensor in place."""

    operation: str  # "add_", "setitem"
    place: Place | None
    number: int  # sequence number of the node that it made; -1 where it made none
    label: str  # the caller's variable
    storage: int  # identifies the memory
    version: int  # of the tensor, after it


class Changes:
    """The changes of a recording, the last ones.

    Args:
        place: the user's line that a frame is called from.
    """

    def __init__(self, place: Callable[[FrameType | None], Place | None]) -> None:
        self._place = place
        self._seen: deque[Change] = deque(maxlen=_KEPT)
        self._steps: WeakKeyDictionary[Optimizer, Place | None] = WeakKeyDictionary()  # their last

    @uncompiled
    def see(self, func: Any, args: Any, kwargs: Any, frame: FrameType, number: int) -> None:
        """A call has changed a tensor in place, or could have.

        Args:
            func, args, kwargs: the call.
            frame: that called it.
            number: sequence number of the node that it made; -1 where it made none.
        """
        options = kwargs or {}
        changed: Any = options.get("out")
        if changed is None and args and options.get("inplace", True):
            changed = args[0]
        if str(frame.f_globals.get("__name__")).startswith("torch.optim."):
            return
        if issubclass(type(changed), Tensor):
            # The mode is off in here, but a subclass has its own say; some have no memory.
            with torch._C.DisableTorchFunctionSubclass(), suppress(Exception):
                row = storage_id(changed), changed._version
                label = _variable(changed, frame)
                self._seen.append(Change(name_of(func), self._place(frame), number, label, *row))

    def stepped(self, optimizer: Optimizer, place: Place | None) -> None:
        """An optimizer is about to step."""
        self._steps[optimizer] = place

    def since(self, tensor: Tensor, version: int) -> list[Change]:
        """The changes of a tensor after it had this version, oldest first."""
        storage, now = storage_id(tensor), tensor._version
        found: list[Change] = []
        for change in reversed(self._seen):
            # Other memory may have had this address before: there the versions do not fall.
            if change.storage == storage and version < change.version <= now:
                now = change.version - 1
                found.append(change)
        if not found:
            for optimizer, place in self._steps.items():
                held = (p for group in optimizer.param_groups for p in group["params"])
                if any(same_storage(parameter, tensor) for parameter in held):
                    return [Change("step", place, -1, "", storage, now)]
        return found[::-1]


def same_storage(one: Tensor, other: Tensor) -> bool:
    """Do two tensors share memory."""
    return one.layout is torch.strided and storage_id(one) == storage_id(other)


def _variable(tensor: Tensor, frame: FrameType) -> str:
    """What the user's own code that changes a tensor calls it."""
    values = local_variables(frame) if user_frame(frame) is frame else {}
    return next((name for name, value in values.items() if value is tensor), "")


def _in_place() -> frozenset[Any]:
    spaces = (Tensor, torch._C.TensorBase, torch, torch.nn.functional, torch.nn.init)
    found = []
    for space in spaces:
        for name, value in vars(space).items():
            own = name.endswith("_") and not name.endswith("__")
            if callable(value) and name not in _KEEP and (own or name in _OPERATORS):
                found.append(value)
    return frozenset(found)


_KEEP = {"requires_grad_", "detach_", "share_memory_"}  # the values
_OPERATORS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__idiv__", "__ifloordiv__"}
_OPERATORS |= {"__imod__", "__iand__", "__ior__", "__ixor__"}

# Calls that change their first argument in place.
IN_PLACE = _in_place()
