"""What was changed in place while recording, and by which line: to tell why a backward failed.

Noted are the calls that the recording's thread makes into torch and that raise the version of a
tensor they are given (`add_`, `x[i] = 1`, `relu(inplace=True)`, `out=`, an embedding's `max_norm`),
and the steps of optimizers. Not seen: what other threads, scripted and compiled code change.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called, Calling, Raised
from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.optimizers import Stepped, Stepping, parameters_of
from ...internals.tensors.memory import storage_id, storage_ref
from ...internals.tensors.pytree import tensors
from ...internals.tensors.weak import Ref
from .tracking import name_of

_CHANGES = 10_000  # changes; the oldest are forgotten
_STEPS = 100
_OPTIONS = frozenset(("inplace", "out", "max_norm"))  # that make a call change what it is given


class Change(NamedTuple):
    """What raised the version of a tensor."""

    operation: str  # "add_", "setitem", "relu(inplace=)", "step" of an optimizer
    place: CodePosition | None
    before: int  # version
    after: int
    number: int = -1  # sequence number of the node that it made, if it made one
    storage: int = 0  # identifies the memory ...
    memory: Any = None  # ... which, while this is there, belongs to nothing else
    tensor: Ref | None = None
    shape: tuple[int, ...] = ()
    view: bool = False  # is it a view of another tensor


Versions = list[tuple[Tensor, int]]  # tensors that a call may change, and what they have


class _Step(NamedTuple):
    """A step of an optimizer: the versions of its parameters before and after."""

    optimizer: weakref.ref[Optimizer]
    place: CodePosition | None
    before: list[int]
    after: list[int]


class Stepper(Protocol):
    """Knows what is an optimizer's step."""

    def own(self, frame: FrameType | None) -> bool:
        """Is a call from this frame an optimizer's own."""

    def step_by_hand(self) -> None:
        """The program has done what a step does."""


class Changes:
    """The changes of a recording, the last ones.

    Args:
        place: the user's line that a frame is called from.
        steps: are told of one that the program makes by hand.
    """

    def __init__(
        self, place: Callable[[FrameType | None], CodePosition | None], steps: Stepper
    ) -> None:
        self.functions = IN_PLACE | _OPTIONS
        self._place = place
        self._program_steps = steps
        self._changes: deque[Change] = deque(maxlen=_CHANGES)
        self._steps: deque[_Step] = deque(maxlen=_STEPS)
        self._before: Versions = []  # what the call that is running may change
        self._read: set[int] = set()  # leaves whose gradient the program itself has read

    def on_call_start(self, event: Calling) -> None:
        """A call is about to change something, perhaps."""
        func, kwargs = event.func, event.kwargs
        if self._program_steps.own(event.frame):
            return
        module = str(event.frame.f_globals.get("__name__"))
        if module.startswith("torch.optim.") and module != "torch.optim.swa_utils":
            return  # of a step, which is noted as one
        for tensor in tensors(_changed(func, event.args, kwargs or {})):
            with suppress(RuntimeError):  # an inference tensor has no version
                self._before.append((tensor, tensor._version))

    def on_call_end(self, event: Called) -> None:
        """Handle a finished call."""
        if self._before:
            before, self._before = self._before, []
            self._look(before, event)

    def on_call_error(self, event: Raised) -> None:
        """Handle a call that raised."""
        self._before = []

    def _look(self, versions: Versions, event: Called) -> None:
        given = (k for k, v in (event.kwargs or {}).items() if k in _OPTIONS and v is not None)
        name = name_of(event.func) + next((f"({option}=)" for option in given), "")
        number = event.end - 1 if event.end > event.start else -1
        place = None
        for tensor, before in versions:
            if tensor._version > before:
                place = place or self._place(event.frame)
                with suppress(RuntimeError, NotImplementedError):  # some have no memory
                    memory = storage_ref(tensor)
                    storage = storage_id(tensor)
                    if storage in self._read:
                        self._program_steps.step_by_hand()
                    row = name, place, before, tensor._version, number, storage
                    more = Ref(tensor), tensor.shape, tensor._base is not None
                    self._changes.append(Change(*row, memory, *more))

    def on_optimizer_step_start(self, event: Stepping) -> None:
        """Handle the beginning of an optimizer step."""
        optimizer, place = event.optimizer, self._place(event.frame)
        self._steps.append(_Step(weakref.ref(optimizer), place, _versions(optimizer), []))

    def on_optimizer_step_end(self, event: Stepped) -> None:
        """Handle the end of an optimizer step."""
        for step in reversed(self._steps):
            if step.optimizer() is event.optimizer:
                step.after.extend(_versions(event.optimizer))
                break

    def read(self, leaf: Tensor) -> None:
        """Note that the program itself read the gradient of a leaf."""
        self._read |= {id(leaf), storage_id(leaf)}

    def replaced(self, leaf: Tensor) -> None:
        """Note that `leaf.data` was set."""
        if id(leaf) in self._read:
            self._program_steps.step_by_hand()

    def on_backward_start(self, event: object) -> None:
        """Forget the gradients that were read before this backward."""
        self._read.clear()

    def since(self, tensor: Tensor, version: int) -> list[Change]:
        """Return the changes that raised a tensor's version to its current value, oldest first.

        Empty unless all changes are known with certainty.
        """
        known = [*self._of(tensor), *self._of_steps(tensor)]
        found: list[Change] = []
        now = tensor._version
        while now > version:
            # What an optimizer did inside its step is the step.
            ending = sorted((c for c in known if c.after == now), key=lambda change: change.before)
            widest = [change for change in ending if change.before == ending[0].before]
            # Of a step the parameter itself is known.
            widest = [change for change in widest if change.operation == "step"] or widest
            if len({change.place for change in widest}) != 1:
                return []
            found.append(widest[0])
            now = widest[0].before
        return found[::-1]

    def when_first_run(self, shape: tuple[int, ...], version: int, now: int) -> list[Change]:
        """Return the changes that raised a version when a checkpoint ran for the first time.

        The second run is inside backward, where calls are not observed. Empty if uncertain.
        """
        found: list[Change] = []
        while version < now:
            same = [
                c for c in self._changes if (c.before, c.shape, c.number) == (version, shape, -1)
            ]
            if len({change.place for change in same}) != 1 or same[0].after > now:
                return []
            found.append(same[0])
            version = same[0].after
        return found

    def last(self, tensor: Tensor) -> Change | None:
        """Return the last call that wrote into a tensor's memory, by `.data` too; None if none did.

        What optimizers write is left out.
        """
        with suppress(RuntimeError, NotImplementedError):  # some have no memory
            storage = storage_id(tensor)
            return next((c for c in reversed(self._changes) if c.storage == storage), None)
        return None

    def _of(self, tensor: Tensor) -> list[Change]:
        storage = storage_id(tensor)
        found = []
        for change in self._changes:
            if change.storage == storage:
                changed = None if change.tensor is None else change.tensor()
                # `x.data` has the memory of x, and versions of its own.
                if changed is None or changed._version == tensor._version:
                    found.append(change)
        return found

    def _of_steps(self, tensor: Tensor) -> list[Change]:
        found = []
        for step in self._steps:
            optimizer = step.optimizer()
            parameters = [] if optimizer is None else parameters_of(optimizer)
            if len(parameters) == len(step.before) == len(step.after):
                rows = zip(parameters, step.before, step.after, strict=True)
                found += [
                    Change("step", step.place, before, after)
                    for parameter, before, after in rows
                    if after > before and same_memory(parameter, tensor)
                ]
        return found


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors share all elements, as a weight and its transpose do."""
    dense = one.layout is torch.strided and other.layout is torch.strided
    if not dense or storage_id(one) != storage_id(other):
        return False
    return TensorBase.numel(one) == TensorBase.numel(other) and TensorBase.storage_offset(
        one
    ) == TensorBase.storage_offset(other)


def _versions(optimizer: Optimizer) -> list[int]:
    with unseen_calls(), suppress(RuntimeError):
        return [parameter._version for parameter in parameters_of(optimizer)]
    return []


def _changed(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the tensors that a call may change in place."""
    if kwargs.get("out") is not None:
        return kwargs["out"]
    if kwargs.get("max_norm") is not None:  # of an embedding: its weight
        return args[1] if len(args) > 1 else kwargs.get("weight")
    if func in IN_PLACE or kwargs.get("inplace"):
        return args[0] if args else next(iter(kwargs.values()), None)
    return None


def _in_place() -> frozenset[Any]:
    found = []
    for space in (Tensor, Tensor.__base__, torch, torch.nn.functional, torch.nn.init):
        for name, value in vars(space).items():
            own = name.endswith("_") and not name.endswith("__")
            if callable(value) and name not in _KEEP and (own or name in _OPERATORS):
                found.append(value)
    return frozenset(found)


_KEEP = {"requires_grad_", "detach_", "share_memory_"}  # the values
_OPERATORS = {f"__i{name}__" for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod")}
_OPERATORS |= {f"__i{name}__" for name in ("pow", "and", "or", "xor", "lshift", "rshift")}
_OPERATORS.add("__setitem__")

# Calls that change what they are given first.
IN_PLACE = _in_place()
